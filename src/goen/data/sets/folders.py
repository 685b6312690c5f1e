"""Image sets on the command line: a folder of images, or the name of a known set."""

from collections import Counter
from collections.abc import Sequence
from logging import getLogger
from pathlib import Path

from goen.data.images.decoding import pixel_formats, read_image_size
from goen.data.images.finding import describe_skipped
from goen.data.images.formats import SUFFIXES
from goen.data.images.pixel_format import COLOUR, PixelFormat
from goen.data.imageset import ImageSet
from goen.data.sets.readers import Source, class_files, class_folders, class_names, stack_file
from goen.data.sets.sources import load_set, names
from goen.data.sets.store import prepare_set
from goen.errors import UsageError
from goen.io.arrays import is_array_file

_log = getLogger(__name__)


def open_image_set(
    name: str,
    size: tuple[int, int] | None,
    classes: tuple[str, ...] | None,
    pixel_format: PixelFormat = COLOUR,
) -> ImageSet:
    """A folder of images, a stack of images, or a known set; ``()``: there are no classes.

    Args:
        name: of a folder, an NPZ or NPY file with a stack of images, or a set.
        size: (height, width) to resize to; of the first image if not given.
        classes: their names; of the set if not given.
        pixel_format: of the pixels. Known sets have colour.
    """
    folder = Path(name)
    if is_array_file(folder) and folder.is_file():
        return prepare_set(stack_file(folder, size, classes, pixel_format), folder.stem)
    if not folder.is_dir():
        if name.partition("/")[0] in names():
            images = load_set(name)
            if size is not None and images.image_shape[1:] != size:
                height, width = images.image_shape[1:]
                raise UsageError(
                    f"{name} has images of {height}×{width}, and {size[0]}×{size[1]} are needed. "
                    "Only folders of images are resized; let --preprocess do it for sets."
                )
            return images.of_classes(classes, images.name) if classes else images
        raise UsageError(
            f"{name} is neither a folder nor a known set ({', '.join(names())}), nor a file (.npz, "
            ".npy) with a stack of images."
        )
    source, above = folder_source(folder, size, classes, pixel_format)
    images = prepare_set(source, folder.resolve().name)
    if size is None:
        _warn_of_sizes(image_files(str(above), images), images.image_shape[1:], pixel_format)
    return images


def folder_source(
    folder: Path,
    size: tuple[int, int] | None,
    classes: tuple[str, ...] | None,
    pixel_format: PixelFormat = COLOUR,
) -> tuple[Source, Path]:
    """The images of a folder as ``open_image_set`` has them, and the folder of the class folders.

    Raises:
        UsageError: it has no class folders, and classes are wanted.
    """
    folder = folder.resolve()
    if classes == ():
        # All images below the folder, as one class of its own name.
        above, classes = folder.parent, (folder.name,)
    else:
        above = folder
        _check_class_folders(folder, classes)
    skipped = Counter[str]()
    source = class_folders(above, size, classes, skipped, pixel_format)
    if skipped:
        _log.info("%s: %s", folder, describe_skipped(skipped))
    return source, above


def _check_class_folders(folder: Path, classes: tuple[str, ...] | None) -> None:
    """Raise a UsageError if there are none; warn of images and folders that are left out."""
    there = class_names(folder)
    if not there:
        raise UsageError(
            f"{folder} has no class folders: put the images of each class into a folder of its "
            "name."
        )
    loose = sum(1 for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if loose:
        _log.warning("%s: images outside of class folders are left out: %d", folder, loose)
    others = ", ".join([name for name in there if classes and name not in classes][:10])
    if others:
        sentence = "%s: these folders are not among the classes and are left out: %s"
        _log.warning(sentence, folder, others)


def pixel_formats_of_set(name: str, classes: tuple[str, ...] = ()) -> list[PixelFormat]:
    """How the images of a set may be read, as ``pixel_formats`` has it for its first file.

    Args:
        name: as for ``open_image_set``.
        classes: the only ones that count, if there are any.
    """
    file = _first_file(name, classes)
    return [COLOUR] if file is None else pixel_formats(file)


def image_size(
    name: str, pixel_format: PixelFormat, classes: tuple[str, ...] = ()
) -> tuple[int, int]:
    """(height, width) of the first image of a set that is no known one, read in this format."""
    file = _first_file(name, classes)
    assert file is not None  # a known set has one pixel format
    return read_image_size(file, pixel_format)


def _first_file(name: str, classes: tuple[str, ...]) -> Path | None:
    """Of a set; ``None`` if it is a known one, or none: whoever opens it gets the reason."""
    folder = Path(name)
    if is_array_file(folder) and folder.is_file():
        return folder
    if not folder.is_dir() or not (classes := classes or class_names(folder)):
        return None
    return class_files(folder, classes)[0][0]


def _warn_of_sizes(files: Sequence[Path], size: tuple[int, int], pixel_format: PixelFormat) -> None:
    """Warn if an image has another size than the first, which all were resized to."""
    for file in files:
        own = read_image_size(file, pixel_format)
        if own != size:
            _log.warning(
                "The images differ in size: %s has %d×%d. All are resized to %d×%d, the size of "
                "the first. If the classifier was trained on another size, give that: --size.",
                *(file, *own, *size),
            )
            return


def image_files(name: str, images: ImageSet) -> list[Path]:
    """The files of a set that ``open_image_set`` opened, in its order; none if it is a known set.

    Args:
        name: of the folder of class folders.
        images: the set.
    """
    folder = Path(name)
    if not folder.is_dir():
        return []
    return [file for found in class_files(folder, images.classes) for file in found]
