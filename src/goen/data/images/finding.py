"""Image files below a folder."""

import io
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from goen.data.images.formats import SUFFIXES, open_image, pillow_is_quiet
from goen.errors import UsageError, first_of
from goen.io.arrays import is_array_file

# Of skipped files, the endings that a message names.
_MOST_ENDINGS = 5


def find_images(
    folder: Path,
    skipped: Counter[str] | None = None,
    passed: set[str] | None = None,
    *,
    arrays: bool = False,
    refused: Callable[[OSError], None] | None = None,
) -> Iterator[Path]:
    """All images below a folder, sorted within each folder.

    A file is an image if its name ends like one (it may be damaged) or if its content begins like
    one, whatever its name: the formats are those of ``read_image``. Hidden files and folders are
    passed over. Links are followed, but no folder is entered twice.

    Args:
        folder: where to look.
        skipped: counts the other files, by the ending of their names.
        passed: absolute paths of files to pass over, and of the folders that were entered, which
            several calls may share.
        arrays: whether NPY and NPZ files are images, too.
        refused: is told of a folder that may not be read, which is then passed over.

    Raises:
        UsageError: a folder that may not be read, if nobody is told of it.
    """
    counted = Counter[str]() if skipped is None else skipped
    seen = set[str]() if passed is None else passed

    def refuse(error: OSError) -> None:
        if isinstance(error, FileNotFoundError) and error.filename != str(folder):
            return  # it was there a moment ago: whoever tidies up does not stop the search
        if refused is not None:
            return refused(error)
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error

    for place, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in (Path(place, name) for name in sorted(files)):
            if str(file.absolute()) in seen:
                continue
            if file.name.startswith("."):
                counted["hidden"] += 1
            elif looks_like_image(file, arrays=arrays):
                yield file
            else:
                counted[file.suffix.lower() or "no ending"] += 1


def looks_like_image(file: Path, *, arrays: bool = False) -> bool:
    """Whether a file ends or begins like an image, or is an array, if those are images too."""
    named = file.suffix.lower() in SUFFIXES or (arrays and is_array_file(file))
    return named or begins_as_image(file)


def begins_as_image(source: Path | bytes) -> bool:
    """Whether a file, or the content of one, begins like an image of ``FORMATS``."""
    try:
        if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
            return False  # to open a pipe would wait for ever
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with pillow_is_quiet(), open_image(file):
            return True
    except Image.DecompressionBombError:
        return True  # an image, though too large: whoever reads it gets the reason
    except Exception:  # Pillow's decoders let almost any exception out of what is no image
        return False


def describe_skipped(skipped: Counter[str]) -> str:
    """How many files were skipped, by the ending of their names.

    Example:
        >>> describe_skipped(Counter({".txt": 2, "no ending": 1}))
        '3 files skipped, not in a format that goen reads (2 .txt, 1 no ending)'
    """
    kinds = [f"{count:,} {ending}" for ending, count in skipped.most_common()]
    files = "1 file" if skipped.total() == 1 else f"{skipped.total():,} files"
    return f"{files} skipped, not in a format that goen reads ({first_of(kinds, _MOST_ENDINGS)})"
