"""One sentence where the system refuses to write, or a file cannot be read."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from goen.errors import DataCorrupt, GoenError, StorageError


def check_writable(path: Path) -> None:
    """Raise a StorageError if nothing can be written to ``path``; for before long work.

    What counts is the folder that will hold it or, if that does not exist, the nearest above it.
    """
    above = next(p for p in Path(os.path.realpath(path)).parents if os.path.lexists(p))
    if not above.is_dir():
        raise cannot_write(path, NotADirectoryError(errno.ENOTDIR, ""))
    if not os.access(above, os.W_OK | os.X_OK):
        raise cannot_write(path, PermissionError(errno.EACCES, ""))


@contextmanager
def storage_errors(path: Path, *, making: bool = False) -> Iterator[None]:
    """Turn the system's refusal to write into one sentence about ``path``.

    A block may read other files and use the network as well: those errors stay as they are. One
    that only makes files or folders may fail as well where /proc and the like allow none.
    """
    try:
        yield
    except OSError as error:
        if not (making and error.errno == errno.ENOENT) and not _is_about_writing(error, path):
            raise
        raise cannot_write(path, error) from error
    except SafetensorError as error:
        # "I/O error: No space left on device (os error 28)"
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise cannot_write(path, OSError(int(number[1]), str(error))) from error


# Only a write fails in these ways, and the error of a write names no file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EIO),
)


def _is_about_writing(error: OSError, path: Path) -> bool:
    """Whether the disk is full, or what was refused is at or below the folder of ``path``."""
    if error.errno in _FULL:
        return True
    if error.errno not in _REFUSED or not isinstance(error.filename, str | bytes):
        return False
    named = Path(os.fsdecode(error.filename)).absolute()
    return named.is_relative_to(path.parent.absolute())


def cannot_write(path: Path, error: OSError) -> StorageError:
    """The error for this path: the reason that the system gave, and what to do about it."""
    number = error.errno or 0
    advice = {
        errno.ENOSPC: "Free some disk space, or choose another folder",
        errno.EFBIG: "The file system or a limit of yours forbids files of that size",
        errno.EDQUOT: "Free some of your quota, or choose another folder",
        errno.EACCES: "Choose a folder you may write to",
        errno.EISDIR: "A folder stands where a file is needed; choose another name",
        errno.ENAMETOOLONG: "Choose a shorter name",
        errno.EPERM: "Choose a folder you may write to",
        errno.EROFS: "Choose a folder you may write to",
        errno.ENOENT: "No file can be made there; choose another folder",
        errno.ENOTDIR: "A file stands where a folder is needed; choose another folder",
        errno.EEXIST: "A file stands where a folder is needed; choose another folder",
    }.get(number, "Choose another folder")
    reason = os.strerror(number).lower()
    return StorageError(f"Cannot write {path}: {reason}. {advice} (GOEN_CACHE moves goen's own).")


@contextmanager
def read_errors(name: str, problem: str = "is broken or cut short") -> Iterator[None]:
    """Whatever goes wrong with a file that is read becomes a ``DataCorrupt`` that names it.

    Args:
        name: of the file.
        problem: what is said of it before the reason, if it is not the system's.
    """
    try:
        yield
    except GoenError:
        raise
    except FileNotFoundError as error:
        raise DataCorrupt(f"{name} does not exist.") from error
    except MemoryError as error:
        raise DataCorrupt(f"{name} needs more memory than there is. Shrink it first.") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system
            raise DataCorrupt(f"{name} cannot be opened: {error.strerror}.") from error
        # Decoders let almost any exception out of a broken file (OSError, ValueError, SyntaxError,
        # struct.error, IndexError, zlib.error ...): to the user they are one thing.
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise DataCorrupt(f"{name} {problem}: {reason}.") from error
