"""Image lists: text files that name an image and its label in each line, as OpenOOD has them."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from goen.data.images.pixel_format import Pixels
from goen.data.imageset import Labels
from goen.data.sets.readers import Reading, Source, file_stats, read_image_files
from goen.errors import DataCorrupt, DataMissing

_MOST_BYTES = 1 << 28  # ImageNet's training list has about 60 million


def read_image_list(file: Path) -> tuple[list[str], Labels]:
    """The paths and labels of a list: ``path SPACE label`` in each line, −1 for OOD.

    Raises:
        DataMissing: there is no such file.
        DataCorrupt: a line of another form, or a path that leads out of the folder of images.
    """
    if not file.is_file():
        raise DataMissing(f"{file} is not there: it is one of OpenOOD's lists (benchmark_imglist).")
    if file.stat().st_size > _MOST_BYTES:
        raise DataCorrupt(f"{file} has more than {_MOST_BYTES:,} bytes: is it a list of images?")
    paths, labels = [], []
    for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        path, _, label = line.strip().partition(" ")
        place = PurePosixPath(path)
        if place.is_absolute() or ".." in place.parts:
            raise DataCorrupt(f"{file}, line {number}: {path!r} is not a path within the images.")
        try:
            labels.append(int(label))
        except ValueError as error:
            raise DataCorrupt(
                f"{file}, line {number} should be a path, a space and a class number (-1: OOD), "
                f"got {line[:80]!r}."
            ) from error
        paths.append(path)
    if not paths:
        raise DataCorrupt(f"{file} names no images.")
    return paths, np.array(labels, np.int64)


def listed_images(
    lists: Sequence[Path],
    folder: Path,
    classes: tuple[str, ...],
    decode: Callable[[Path], Pixels],
    *decoding: object,
) -> Source:
    """The images of these lists, one after the other.

    Args:
        lists: the files.
        folder: that the paths in them begin at.
        classes: their names; one name for images without labels.
        decode: gives ``(C, H, W)`` of a file, all of one shape.
        decoding: what identifies it.

    Raises:
        DataMissing: images that are not there.
        DataCorrupt: labels of another number of classes.
    """
    read = [read_image_list(file) for file in lists]
    paths = [path for found, _ in read for path in found]
    labels = np.concatenate([found for _, found in read])
    if len(classes) == 1:
        labels = np.zeros_like(labels)
    elif labels.min() < 0 or labels.max() >= len(classes):
        raise DataCorrupt(
            f"{lists[0]} should have labels 0..{len(classes) - 1}; it has {labels.min()}.."
            f"{labels.max()}."
        )
    files = [folder / path for path in paths]
    absent = [path for path, file in zip(paths, files, strict=True) if not file.is_file()]
    if absent:
        raise DataMissing(
            f"{len(absent):,} of the {len(files):,} images of {lists[0].name} are not in {folder}, "
            f"{absent[0]} for one. Get them with OpenOOD's download script; of OOD sets, --sets "
            "names those to evaluate on."
        )

    def reading() -> Reading:
        return read_image_files(files, labels, folder, classes, decode)

    facts = (str(folder.resolve()), classes, labels.tolist(), file_stats(files, folder), *decoding)
    return Source.of(lists[0], reading, *facts)
