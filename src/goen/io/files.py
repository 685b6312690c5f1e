"""Files and folders that appear whole or not at all, and the one rule of what is replaced.

An output that exists is refused. ``overwrite`` replaces a regular file, or a folder that has goen's
marker with the same kind; any other folder that is not empty is refused even then. A folder that
goen works in step by step (a run, a watch) is claimed by the same marker, and continues without a
flag. A link to a folder is followed, since the marker shows what it leads to; one to a file is not.
"""

import glob
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import file_digest
from pathlib import Path

from goen.errors import UsageError, first_of
from goen.io.storage_errors import storage_errors

MARKER = ".goen"
"""A file in every folder that goen makes; its one line is the kind of the folder."""
_STALE_SECONDS = 24 * 3600


def check_free(path: Path, kind: str | None = None, *, overwrite: bool = False) -> Path:
    """The path to write to, links to folders followed, if the rule above allows it.

    ``whole_file`` and ``whole_folder`` call this at their start and at their end; call it yourself
    before long work.

    Args:
        path: of the output.
        kind: of the folder to write, such as ``gate``; without it, the output is a file.
        overwrite: whether an earlier output may be replaced.

    Raises:
        UsageError: something is there that may not be replaced.
    """
    place = Path(os.path.realpath(path))
    if path.is_symlink() and not (kind and place.is_dir()):
        raise UsageError(
            f"{path} is a link, and goen writes through no link to a file. Choose another path, or "
            "remove the link."
        )
    if not os.path.lexists(place) or (kind and place.is_dir() and not any(place.iterdir())):
        return place
    # Killed before it had written its marker, a process leaves an empty one.
    if not (folder_kind(place) in (kind, "") if kind else place.is_file()):
        wanted = f"a {kind} folder that goen made (with the file {MARKER})" if kind else "a file"
        raise UsageError(
            f"{path} exists and is {_described(place)}, not {wanted}: goen leaves it as it is. "
            "Choose another path, or move away what is there."
        )
    if not overwrite:
        raise UsageError(
            f"{path} exists. Replace it with overwrite=True (--overwrite), or choose another path."
        )
    return place


def folder_kind(folder: Path) -> str | None:
    """The kind of a folder that goen made, such as ``run`` or ``gate``; None of any other."""
    marker = folder / MARKER
    if marker.is_symlink() or not marker.is_file():
        return None
    with marker.open(encoding="utf-8", errors="replace") as file:
        return file.readline(80).strip()


def claim_folder(path: Path, kind: str) -> Path:
    """``path`` as a folder of goen's, in which its files are replaced freely; made if it is new.

    Raises:
        UsageError: it is a folder with other files, or of another kind.
    """
    check_free(path, kind, overwrite=True)
    make_folder(path)
    if folder_kind(path) != kind:
        with storage_errors(path):
            _mark(path, kind)
    return path


def _mark(folder: Path, kind: str) -> None:
    (folder / MARKER).write_text(f"{kind}\n", encoding="utf-8")


def check_lock(path: Path) -> Path:
    """The path of a lock, which filelock may truncate: nothing is there, or an empty file.

    Raises:
        UsageError: a link, or a file with content.
    """
    if path.is_symlink() or (path.exists() and path.stat().st_size):
        raise UsageError(
            f"{path} should be a lock of goen, an empty file. Move away what is there."
        )
    return path


def _described(place: Path) -> str:
    if place.is_file():
        return f"a file of {place.stat().st_size:,} bytes"
    if not place.is_dir():
        return "neither a file nor a folder"
    if kind := folder_kind(place):
        return f"a {kind} folder that goen made"
    names = sorted(child.name for child in place.iterdir())
    return f"a folder that holds {first_of(names, 3)}" if names else "an empty folder"


@contextmanager
def whole_file(path: Path, *, overwrite: bool = False, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path that becomes ``path`` when the block ends well.

    A block that fails leaves neither the temporary file nor a changed ``path``.

    Args:
        path: of the file.
        overwrite: whether a file that is there may be replaced.
        private: whether only its owner may read it.

    Raises:
        UsageError: ``path`` may not be replaced, before the block or after it.
    """
    with storage_errors(path):
        place = check_free(path, overwrite=overwrite)
    with _temporary_beside(place) as (temporary, mode):
        yield temporary
        _settle(temporary, 0o600 if private else mode)
        try:
            os.link(temporary, place)  # replaces nothing that has appeared there meanwhile
        except OSError:  # the name is taken, or a file system without hard links
            check_free(place, overwrite=overwrite)
            temporary.replace(place)


@contextmanager
def whole_folder(path: Path, kind: str, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder, with goen's marker, that becomes ``path`` when the block ends well.

    With ``overwrite`` an earlier folder of this kind goes, between two renames.

    Raises:
        UsageError: ``path`` may not be replaced, before the block or after it.
    """
    with storage_errors(path):
        place = check_free(path, kind, overwrite=overwrite)
    with _temporary_beside(place) as (temporary, mode):
        temporary.mkdir()
        _mark(temporary, kind)
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _settle(file, mode)
        old = temporary.with_name(f"{temporary.name}.old.tmp")
        check_free(place, kind, overwrite=overwrite)
        if overwrite:
            with suppress(FileNotFoundError):
                place.rename(old)
        try:
            temporary.rename(place)
        except OSError:
            if old.is_dir() and not place.exists():
                old.rename(place)
            check_free(place, kind, overwrite=overwrite)  # another process may have been first
            raise
        _remove(old)


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


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def make_folder(path: Path) -> Path:
    """``path``, made with its parents if it is not there."""
    with storage_errors(path, making=True):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def _temporary_beside(path: Path) -> Iterator[tuple[Path, int]]:
    """A temporary path in the same folder, and the permissions that new files get there."""
    make_folder(path.parent)
    with storage_errors(path):
        _remove_stale(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns():x}.tmp")
        try:
            with storage_errors(path, making=True):
                mode = _mode_of_new_files(temporary)
            yield temporary, mode
        finally:
            _remove(temporary)


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
        with suppress(FileNotFoundError):
            age = time.time() - leftover.stat().st_mtime
            if left.fullmatch(leftover.name) and age > _STALE_SECONDS:
                _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
