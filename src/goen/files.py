"""Files and folders that appear whole or not at all."""

import errno
import glob
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from goen.errors import StorageError

_STALE_SECONDS = 24 * 3600
_RECORD = ".goen-wrote"
_UMASK = os.umask(0)  # it can only be read by setting it
os.umask(_UMASK)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that takes ``path``'s place when the block ends well.

    A block that fails leaves neither the temporary file nor a changed ``path``.
    """
    with _temporary_beside(path) as temporary:
        yield temporary
        _settle(temporary)
        temporary.replace(path)


@contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` when the block ends well.

    If ``path`` exists by then and ``replace`` is not set, whoever made it was first and theirs
    stays: with a name that is a hash of the content both are the same, so two processes need no
    lock. With ``replace`` the old folder goes, between two renames.
    """
    with _temporary_beside(path) as temporary:
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _settle(file)
        old = temporary.with_name(f"{temporary.name}.old.tmp")
        if replace:
            with suppress(FileNotFoundError):
                path.rename(old)
        try:
            temporary.rename(path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not path.is_dir():
                if old.is_dir():
                    old.rename(path)
                raise
        _remove(old)


def make_folder(path: Path) -> Path:
    """``path``, made with its parents if it is not there."""
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def record_own(folder: Path, names: Collection[str]) -> None:
    """Remember that goen wrote these files, and remove what it wrote before and did not now.

    What others put into the folder stays.
    """
    record = folder / _RECORD
    before = record.read_text(encoding="utf-8").split("\n") if record.is_file() else []
    for name in before:
        if name and name not in names and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
    with whole_file(record) as temporary:
        temporary.write_text("\n".join(sorted(names)), encoding="utf-8")


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    make_folder(path.parent)
    with storage_errors(path):
        _remove_stale(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns():x}.tmp")
        try:
            yield temporary
        finally:
            _remove(temporary)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into one sentence about ``path``."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "Free some disk space, or choose another folder",
            errno.EFBIG: "The file system or a limit of yours forbids files of that size",
            errno.EDQUOT: "Free some of your quota, or choose another folder",
            errno.EACCES: "Choose a folder you may write to",
            errno.EISDIR: "A folder stands where a file is needed; choose another name",
            errno.ENAMETOOLONG: "Choose a shorter name",
            errno.EPERM: "Choose a folder you may write to",
            errno.EROFS: "Choose a folder you may write to",
            errno.ENOTDIR: "A file stands where a folder is needed; choose another folder",
            errno.EEXIST: "A file stands where a folder is needed; choose another folder",
        }.get(error.errno or 0)
        if error.errno in (None, errno.ENOENT, errno.EPIPE):
            raise  # not about writing
        advice = advice or "Choose another folder"
        reason = os.strerror(error.errno or 0).lower()
        message = f"Cannot write {path}: {reason}. {advice} (GOEN_CACHE moves goen's own)."
        raise StorageError(message) from error


def _settle(file: Path) -> None:
    """Give the file the rights any new file has, and bring it to the disk."""
    # Some writers (safetensors) make files that only their owner may read.
    file.chmod(0o666 & ~_UMASK)
    # Without this a power cut after the rename can leave a whole name on half a file.
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def _remove_stale(path: Path) -> None:
    """Clear away what a killed process left, once nobody can still be writing it."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
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
