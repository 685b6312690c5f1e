"""Image sets on the command line: a folder of pictures, or the name of a known set."""

from collections import Counter
from collections.abc import Sequence
from logging import getLogger
from pathlib import Path

from goen.data.array_files import is_array_file
from goen.data.find_pictures import describe_skipped
from goen.data.forms import COLOUR, PixelForm
from goen.data.imageset import ImageSet
from goen.data.open_picture import SUFFIXES
from goen.data.pictures import picture_forms, picture_size
from goen.data.readers import class_files, class_folders, class_names, stack_file
from goen.data.sources import load_set, names
from goen.data.store import prepare_set
from goen.errors import UsageError

_log = getLogger(__name__)


def open_image_set(
    name: str,
    size: tuple[int, int] | None,
    classes: tuple[str, ...] | None,
    form: PixelForm = COLOUR,
) -> ImageSet:
    """A folder of pictures, a stack of images, or a known set; ``()``: there are no classes.

    Args:
        name: of a folder, an NPZ or NPY file with a stack of images, or a set.
        size: (height, width) to resize to; of the first image if not given.
        classes: their names; of the set if not given.
        form: of the pixels. Known sets have colour.
    """
    folder = Path(name)
    if is_array_file(folder) and folder.is_file():
        return prepare_set(stack_file(folder, size, classes, form), folder.stem)
    if not folder.is_dir():
        known, _, split = name.partition("/")
        if known in names():
            images = load_set(known, split or None)
            if size is not None and images.image_shape[1:] != size:
                height, width = images.image_shape[1:]
                raise UsageError(
                    f"{name} has images of {height}×{width}, and {size[0]}×{size[1]} are needed. "
                    "Only folders of pictures are resized; let --preprocess do it for sets."
                )
            return images.of_classes(classes, images.name) if classes else images
        raise UsageError(
            f"{name} is neither a folder nor a known set ({', '.join(names())}), nor a file (.npz, "
            ".npy) with a stack of images."
        )
    folder = folder.resolve()
    if classes == ():
        # All pictures below the folder, as one class of its own name.
        return _prepared(folder, folder.parent, size, (folder.name,), form)
    there = class_names(folder)
    if not there:
        raise UsageError(
            f"{folder} has no class folders: put the pictures of each class into a folder of its "
            "name."
        )
    loose = sum(1 for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if loose:
        _log.warning("%s: pictures outside of class folders are left out: %d", folder, loose)
    others = [name for name in there if classes and name not in classes]
    if others:
        _log.warning(
            "%s: these folders are not among the classes and are left out: %s",
            folder,
            ", ".join(others[:10]),
        )
    return _prepared(folder, folder, size, classes, form)


def image_forms(name: str, classes: tuple[str, ...] = ()) -> list[PixelForm]:
    """How the images of a set may be read, as ``picture_forms`` has it for its first file.

    Args:
        name: as for ``open_image_set``.
        classes: the only ones that count, if there are any.
    """
    file = _first_file(name, classes)
    return [COLOUR] if file is None else picture_forms(file)


def image_size(name: str, form: PixelForm, classes: tuple[str, ...] = ()) -> tuple[int, int]:
    """(height, width) of the first image of a set that is no known one, read in this form."""
    file = _first_file(name, classes)
    assert file is not None  # a known set has one form
    return picture_size(file, form)


def _first_file(name: str, classes: tuple[str, ...]) -> Path | None:
    """Of a set; ``None`` if it is a known one, or none: whoever opens it gets the reason."""
    folder = Path(name)
    if is_array_file(folder) and folder.is_file():
        return folder
    if not folder.is_dir() or not (classes := classes or class_names(folder)):
        return None
    return class_files(folder, classes)[0][0]


def _prepared(
    folder: Path,
    above: Path,
    size: tuple[int, int] | None,
    classes: tuple[str, ...] | None,
    form: PixelForm,
) -> ImageSet:
    """The pictures in the class folders of ``above``; how many other files are there is logged."""
    skipped = Counter[str]()
    source = class_folders(above, size, classes, skipped, form)
    if skipped:
        _log.info("%s: %s", folder, describe_skipped(skipped))
    images = prepare_set(source, folder.name)
    if size is None:
        _warn_of_sizes(picture_files(str(above), images), images.image_shape[1:], form)
    return images


def _warn_of_sizes(files: Sequence[Path], size: tuple[int, int], form: PixelForm) -> None:
    """Warn if a picture has another size than the first, which all were resized to."""
    for file in files:
        height, width = picture_size(file, form)
        if (height, width) != size:
            _log.warning(
                "The pictures differ in size: %s has %d×%d. All are resized to %d×%d, the size of "
                "the first. If the classifier was trained on another size, give that: --size.",
                file,
                height,
                width,
                *size,
            )
            return


def picture_files(name: str, images: ImageSet) -> list[Path]:
    """The files of a set that ``open_image_set`` opened, in its order; none if it is a known set.

    Args:
        name: of the folder of class folders.
        images: the set.
    """
    folder = Path(name)
    if not folder.is_dir():
        return []
    return [file for found in class_files(folder, images.classes) for file in found]
