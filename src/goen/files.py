"""Files and folders that appear whole or not at all, and never replace what goen did not write."""

import errno
import glob
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from goen.errors import StorageError, UsageError

_STALE_SECONDS = 24 * 3600
_RECORD = ".goen-wrote"


@dataclass(frozen=True)
class Own:
    """One kind of output of goen, and how to recognise an earlier one: only that is replaced.

    Attributes:
        name: for people, such as ``a saved gate``.
        test: whether what lies at a path is of this kind; an exception means that it is not.
        parts: of a folder, the names that belong to it.
    """

    name: str
    test: Callable[[Path], bool]
    parts: frozenset[str] = frozenset()

    def recognises(self, path: Path) -> bool:
        """Whether goen wrote what lies there, as this kind of output."""
        try:
            return self.test(path)
        except Exception:  # a foreign file can make a parser raise anything
            return False


def check_free(path: Path, ours: Own | None = None, *, folder: bool = False) -> Path:
    """The path to write to, links followed, if nothing would be lost by it.

    Free is a path where nothing lies, an empty folder where a folder is needed, and what ``ours``
    recognises. ``whole_file`` and ``whole_folder`` call this at their start and at their end; call
    it yourself before long work.

    Raises:
        UsageError: something else lies there, or a link that leads nowhere.
    """
    place = Path(os.path.realpath(path))
    if path.is_symlink() and not place.exists():
        raise UsageError(f"{path} is a link to {place}, which does not exist. Choose another path.")
    if not os.path.lexists(place):
        return place
    if folder and place.is_dir() and not any(place.iterdir()):
        return place
    if ours is None or place.is_dir() != folder or not ours.recognises(place):
        raise _taken(path, place, ours)
    return place


def check_writable(path: Path) -> None:
    """Raise a StorageError if nothing can be written to ``path``; for before long work.

    What counts is the folder that will hold it or, if that does not exist, the nearest above it.
    """
    above = next(p for p in Path(os.path.realpath(path)).parents if os.path.lexists(p))
    if not above.is_dir():
        raise _cannot_write(path, NotADirectoryError(errno.ENOTDIR, ""))
    if not os.access(above, os.W_OK | os.X_OK):
        raise _cannot_write(path, PermissionError(errno.EACCES, ""))


def _taken(path: Path, place: Path, ours: Own | None) -> UsageError:
    what = _described(place, ours.parts if ours else frozenset())
    kind = f", not {ours.name}" if ours else ""
    return UsageError(
        f"{path} exists and is {what}{kind}. goen replaces only its own output. Choose another "
        "path, or move away what is there."
    )


def _described(place: Path, parts: Collection[str]) -> str:
    if place.is_file():
        return f"a file of {place.stat().st_size:,} bytes"
    if not place.is_dir():
        return "neither a file nor a folder"
    names = sorted(child.name for child in place.iterdir())
    others = [name for name in names if name not in parts] or names
    more = ", ..." if len(others) > 3 else ""
    return f"a folder that holds {', '.join(others[:3])}{more}" if others else "an empty folder"


@contextmanager
def whole_file(path: Path, ours: Own | None = None) -> Iterator[Path]:
    """Yield a temporary path that becomes ``path`` when the block ends well.

    A block that fails leaves neither the temporary file nor a changed ``path``. A link stays a
    link; the file it leads to is written.

    Args:
        path: where nothing lies, or what ``ours`` recognises.
        ours: the kind of output that may be replaced; nothing may if it is not given.

    Raises:
        UsageError: something else lies at ``path``, before the block or after it.
    """
    with storage_errors(path):
        place = check_free(path, ours)
    with _temporary_beside(place) as (temporary, mode):
        yield temporary
        _settle(temporary, mode)
        if not _linked(temporary, place):
            check_free(place, ours)
            temporary.replace(place)


def _linked(temporary: Path, place: Path) -> bool:
    """Give the file its name unless something has that name by now; whether that was done."""
    try:
        os.link(temporary, place)
    except OSError:  # the name is taken, or a file system without hard links
        return False
    return True


@contextmanager
def whole_folder(path: Path, ours: Own | None = None) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` when the block ends well.

    Without ``ours`` nothing is replaced. If a folder is there by the end, whoever made it was first
    and theirs stays: with a name that is a hash of the content both are the same, so two processes
    need no lock. With ``ours`` an earlier output of that kind goes, between two renames.

    Raises:
        UsageError: a file lies at ``path``, or with ``ours`` something that it does not recognise.
    """
    with storage_errors(path):
        place = Path(os.path.realpath(path))
        if ours is not None or not place.is_dir():
            place = check_free(path, ours, folder=True)
    with _temporary_beside(place) as (temporary, mode):
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _settle(file, mode)
        old = temporary.with_name(f"{temporary.name}.old.tmp")
        if ours is not None:
            _set_aside(place, old, ours)
        try:
            temporary.rename(place)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not place.is_dir():
                if old.is_dir():
                    old.rename(place)
                raise
            if ours is not None:
                check_free(place, ours, folder=True)
        _remove(old)


def _set_aside(place: Path, old: Path, ours: Own) -> None:
    """Move what is at ``place`` away, and back if it is not ours, without a gap between."""
    with suppress(FileNotFoundError):
        place.rename(old)
        try:
            check_free(old, ours, folder=True)
        except UsageError as error:
            old.rename(place)
            raise _taken(place, place, ours) from error


def remove_own(path: Path, ours: Own) -> None:
    """Delete the file if it is there.

    Raises:
        UsageError: it is not of this kind.
    """
    place = check_free(path, ours)
    place.unlink(missing_ok=True)


LOCK = Own("a lock of goen", lambda path: path.is_file() and not path.stat().st_size)
"""Empty: some versions of filelock truncate what they find at a lock's path."""


def is_folder(path: Path) -> bool:
    """Whether a folder is there. ``Path.is_dir`` raises for names too long or out of reach.

    Example:
        >>> is_folder(Path(".")), is_folder(Path("x" * 5000))
        (True, False)
    """
    return os.path.isdir(path)  # noqa: PTH112


def printable_path(path: Path) -> str:
    r"""The path as text, whatever bytes its name is made of.

    Example:
        >>> printable_path(Path(os.fsdecode(b"caf\xe9.png"))) == r"caf\xe9.png"
        True
    """
    return printable(str(path))


def printable(text: str) -> str:
    """A text with names of files in it, whatever bytes they are made of, that can be encoded."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def make_folder(path: Path) -> Path:
    """``path``, made with its parents if it is not there."""
    with storage_errors(path), _no_place_is_an_error(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def own_files(folder: Path, names: Collection[str]) -> Iterator[Own]:
    """Write these files into a folder that others use as well; yields how to recognise goen's own.

    A record in the folder names the files that goen wrote. Those it does not write this time are
    removed at the end; what others put there stays.

    Raises:
        UsageError: a file of such a name is there and goen did not write it, or a link: a folder
            from somebody else might let it point to any file of the user's.
    """
    make_folder(folder)
    for name in (_RECORD, *names):
        if (folder / name).is_symlink():
            raise UsageError(
                f"{folder / name} is a link, and goen writes through none here. Remove it, or name "
                "another file."
            )
    before = recorded_names(folder)
    ours = Own("a file that goen wrote there", lambda path: path.name in before)
    for name in names:
        check_free(folder / name, ours)
    # Before the files: if this process is killed, the next one still recognises them as goen's.
    _record(folder, {*before, *names})
    yield ours
    for name in before - {*names}:
        if not (folder / name).is_dir():
            (folder / name).unlink(missing_ok=True)
    _record(folder, names)


def recorded_names(folder: Path) -> set[str]:
    """The names of the files that goen wrote into this folder with ``own_files``."""
    record = folder / _RECORD
    lines = record.read_text(encoding="utf-8").split("\n") if record.is_file() else []
    return {name for name in lines if name and Path(name).name == name}


def _record(folder: Path, names: Collection[str]) -> None:
    with whole_file(folder / _RECORD, Own("a record of goen", Path.is_file)) as temporary:
        temporary.write_text("\n".join(sorted(names)), encoding="utf-8")


@contextmanager
def _temporary_beside(path: Path) -> Iterator[tuple[Path, int]]:
    """A temporary path in the same folder, and the permissions that new files get there."""
    make_folder(path.parent)
    with storage_errors(path):
        _remove_stale(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns():x}.tmp")
        try:
            with _no_place_is_an_error(path):
                mode = _mode_of_new_files(temporary)
            yield temporary, mode
        finally:
            _remove(temporary)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into one sentence about ``path``.

    A block may read other files and use the network as well: those errors stay as they are.
    """
    try:
        yield
    except OSError as error:
        if not _is_about_writing(error, path):
            raise
        raise _cannot_write(path, error) from error
    except SafetensorError as error:
        # "I/O error: No space left on device (os error 28)"
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise _cannot_write(path, OSError(int(number[1]), str(error))) from error


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


@contextmanager
def _no_place_is_an_error(path: Path) -> Iterator[None]:
    """For a block that makes a file or folder: where /proc and the like allow none, a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> StorageError:
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


def _mode_of_new_files(temporary: Path) -> int:
    """The permissions that a new file gets there, seen on one that is removed again.

    The umask could only be read by setting it, for every thread of the process.
    """
    temporary.touch()
    mode = stat.S_IMODE(temporary.stat().st_mode)
    temporary.unlink()
    return mode


def _settle(file: Path, mode: int) -> None:
    """Give the file the permissions of any new file, and bring it to the disk."""
    # Some writers (safetensors) make files that only their owner may read.
    file.chmod(mode)
    # Without this a power cut after the rename can leave a whole name on half a file.
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def _remove_stale(path: Path) -> None:
    """Remove what a killed process left, once it is too old to be still written."""
    left = re.compile(re.escape(f".{path.name}.") + r"\d+\.[0-9a-f]+\.tmp(\.old\.tmp)?")
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if not left.fullmatch(leftover.name):
            continue  # not a file of goen's
        try:
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                _remove(leftover)
        except FileNotFoundError:
            continue


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
