"""Image sets in folders and files, and known sets by name."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TypeAlias, TypeGuard, TypeVar

import numpy as np

from goen.data.images.array_files import has_labels, read_array_header
from goen.data.images.finding import describe_skipped, find_images
from goen.data.images.formats import SUFFIXES
from goen.data.images.headers import pixel_formats, read_image_size
from goen.data.images.limits import MAX_PIXELS
from goen.data.images.pixel_format import COLOUR, PixelFormat
from goen.data.imageset import ImageSet
from goen.data.sets.readers import Source, class_files, class_folders, class_names, stack_file
from goen.data.sets.sources import load_set, names
from goen.data.sets.store import describe_broken, prepare, prepare_set
from goen.errors import DataCorrupt, UsageError, first_of
from goen.io.arrays import is_array_file

_log = getLogger(__name__)
_NAMED = 10
Found = TypeVar("Found")

Paths: TypeAlias = str | Path | Sequence[str | Path]
"""A folder of images, an image file, a stack of images (NPZ, NPY), or a list of image files."""


@dataclass(frozen=True)
class ImageReading:
    """How images in files are read.

    Attributes:
        size: (height, width) to resize to; of the first image if not given.
        pixel_format: of the pixels.
        classes: names of the class folders in the order of their numbers; all class folders, in
            the order of their names, if not given; ``()``: no image has a class.
    """

    size: tuple[int, int] | None = None
    pixel_format: PixelFormat = COLOUR
    classes: tuple[str, ...] | None = None


AS_THEY_ARE = ImageReading()
"""In the size of the first image, in colour, with the labels of all class folders."""


def are_paths(value: object) -> TypeGuard[Paths]:
    """Whether this is a path, or a list of paths that is not empty.

    Example:
        >>> are_paths("photo.jpg"), are_paths([Path("a.png"), "b.png"]), are_paths([])
        (True, True, False)
    """
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, str | Path) for item in value)
    return isinstance(value, str | Path)


def list_files(paths: Paths) -> list[Path] | None:
    """The image files that are meant, those of folders in their order.

    ``None`` if they are images of a set: a stack in a file, or a known set.

    Raises:
        UsageError: a folder without images, or a path where there is nothing.
    """
    several = [paths] if isinstance(paths, str | Path) else paths
    if isinstance(paths, str | Path) and (_is_stack(Path(paths)) or _is_known(str(paths))):
        return None
    files: list[Path] = []
    for path in map(Path, several):
        if not path.is_dir():
            if not path.exists():
                raise _nothing_there(str(path))
            files.append(path)
            continue
        skipped = Counter[str]()
        found = list(find_images(path, skipped))
        if not found:
            raise UsageError(
                f"{path} holds no images. {describe_skipped(skipped) if skipped else ''}".strip()
            )
        files += found
    return files


def _is_stack(file: Path) -> bool:
    """Whether this is a file with a stack of images, not with one image."""
    if not is_array_file(file) or not file.is_file():
        return False
    try:
        return read_array_header(file, str(file), MAX_PIXELS).is_stack
    except DataCorrupt:  # several arrays: images and labels
        return True


def _is_known(name: str) -> bool:
    return not Path(name).exists() and name.partition("/")[0] in names()


def _nothing_there(name: str) -> UsageError:
    return UsageError(
        f"{name} is neither a folder nor a known set ({', '.join(names())}), nor a file with an "
        "image or a stack of images (.npz, .npy)."
    )


def open_folder(
    path: str | Path,
    *,
    size: tuple[int, int] | None = None,
    classes: tuple[str, ...] | None = None,
    pixel_format: PixelFormat = COLOUR,
) -> ImageSet:
    """The images of a folder as a set: with the labels of its class folders, if it has any.

    The images are decoded once into the cache (``$GOEN_CACHE``) and memory-mapped from there.

    Args:
        path: a folder with one folder of images per class; a folder of images, which are one class
            of its name; or a file with a stack of images (NPZ, NPY).
        size: (height, width) to resize to; of the first image if not given.
        classes: names of the class folders in the order of their numbers; all, in the order of
            their names, if not given. Other class folders are left out, with a warning; a folder
            that has none of them is one class.
        pixel_format: channels and bits, such as a gate's ``pixel_format``.

    Raises:
        UsageError: there is no such folder or file.
        DataCorrupt: no image can be read; single files that cannot are left out with a warning.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp(), "animals")
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir(parents=True)
        ...     Image.new("RGB", (12, 10)).save(folder / name / "1.png")
        >>> open_folder(folder, size=(8, 8))
        ImageSet(animals: 2 images 3×8×8, 2 classes)
    """
    return open_labelled(path, ImageReading(size, pixel_format, classes))[0]


def open_labelled(path: str | Path, reading: ImageReading) -> tuple[ImageSet, bool]:
    """The set of ``open_folder``, or a known one by its name, and whether its images have labels.

    Raises:
        UsageError: there is nothing of this name.
    """
    place, asked = Path(path), reading.classes
    labelled = asked != ()
    used = asked
    if place.is_dir():
        there = class_names(place)
        used = there if asked is None else tuple(name for name in asked if name in there)
        labelled = bool(used)
    elif place.is_file() and labelled:
        used, labelled = None, has_labels(place, str(path))
    opened = used if labelled else ()
    images = open_image_set(str(path), reading.size, opened, reading.pixel_format)
    if labelled and asked and {*images.classes} <= {*asked}:
        # Numbered as asked for, also where there are some of the classes only.
        numbers = np.array([asked.index(name) for name in images.classes])
        images = replace(images, labels=numbers[images.labels], classes=asked)
    return images, labelled


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
        if _is_known(name):
            images = load_set(name)
            if size is not None and images.image_shape[1:] != size:
                height, width = images.image_shape[1:]
                raise UsageError(
                    f"{name} has images of {height}×{width}, and {size[0]}×{size[1]} are needed. "
                    "Only folders of images are resized; let --preprocess do it for sets."
                )
            return images.of_classes(classes, images.name) if classes else images
        raise _nothing_there(name)
    source, above = folder_source(folder, size, classes, pixel_format)
    found = prepare(source, folder.resolve().name)
    images = found.images
    if found.broken:
        _log.warning(describe_broken(str(folder), found.broken))
    listed = partial(_files_as_typed, folder, above, images.classes, frozenset(found.broken))
    images = replace(images, list_files=listed)
    if size is None:
        _warn_of_sizes(images.files(), images.image_shape[1:], pixel_format)
    return images


def open_part(
    name: str, size: tuple[int, int] | None, classes: tuple[str, ...], pixel_format: PixelFormat
) -> ImageSet:
    """``open_image_set`` for images that fit no classifier: a folder may lack some classes.

    A warning names these. The labels are numbers in ``classes``.
    """
    there = class_names(Path(name)) if Path(name).is_dir() else ()
    missing = [one for one in classes if one not in there]
    if not there or not missing or len(missing) == len(classes):
        return open_image_set(name, size, classes, pixel_format)
    some = f"{len(missing)} of {len(classes)} classes: {first_of(missing, _NAMED)}"
    _log.warning("%s has no folder for %s", name, some)
    return open_labelled(name, ImageReading(size, pixel_format, classes))[0]


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


def require_class_folders(folder: Path) -> tuple[str, ...]:
    """Their names; a UsageError if there are none."""
    there = class_names(folder)
    if not there:
        raise UsageError(
            f"{folder} has no class folders: put the images of each class into a folder of its "
            "name."
        )
    return there


def _check_class_folders(folder: Path, classes: tuple[str, ...] | None) -> None:
    """Raise a UsageError if there are none; warn of images and folders that are left out."""
    there = require_class_folders(folder)
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
    return _of_first_file(name, classes, pixel_formats) or [COLOUR]


def image_size(
    name: str, pixel_format: PixelFormat, classes: tuple[str, ...] = ()
) -> tuple[int, int]:
    """(height, width) of the first image of a set that is no known one, read in this format."""
    found = _of_first_file(name, classes, partial(read_image_size, pixel_format=pixel_format))
    assert found is not None  # a known set has one pixel format
    return found


def _of_first_file(
    name: str, classes: tuple[str, ...], read: Callable[[Path], Found]
) -> Found | None:
    """What the first file of a set that can be read gives.

    ``None`` if it is a known set, or none: whoever opens it gets the reason.

    Raises:
        DataCorrupt: none can be read.
    """
    folder = Path(name)
    if folder.is_file():
        return read(folder)
    if not folder.is_dir():
        return None
    files: Iterable[Path] = find_images(folder)
    if classes := classes or class_names(folder):
        files = (file for found in class_files(folder, classes) for file in found)
    refused: DataCorrupt | None = None
    for file in files:
        try:
            return read(file)
        except DataCorrupt as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return None


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


def _files_as_typed(
    folder: Path, above: Path, classes: tuple[str, ...], broken: frozenset[str]
) -> list[Path]:
    """The files of the images of a folder in their order, below the folder as it was given."""
    files = [file for found in class_files(above, classes) for file in found]
    kept = [file for file in files if str(file.relative_to(above)) not in broken]
    return [folder / file.relative_to(folder.resolve()) for file in kept]
