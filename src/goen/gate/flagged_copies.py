"""Copies of flagged pictures in one folder, whatever their names and wherever they come from."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from logging import getLogger
from pathlib import Path

from goen.errors import UsageError
from goen.files import (
    is_folder,
    make_folder,
    own_files,
    printable_path,
    recorded_names,
    whole_file,
)

_log = getLogger(__name__)

# In bytes. The names of most file systems have 255, of which a temporary name needs 30 more.
_LONGEST_NAME = 200
_LONGEST_SUFFIX = 20
# A record of goen's names has one per line; a separator would lead out of the folder.
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")


def check_copy_folder(folder: Path, paths: Iterable[Path], files: Iterable[Path]) -> None:
    """Make the folder for copies, if the pictures to score lie elsewhere.

    Args:
        folder: for ``copy_flagged``.
        paths: files and folders that are scored.
        files: the pictures found there.

    Raises:
        UsageError: it lies within a folder that is scored, so that the next call would score the
            copies, or it holds pictures that are scored.
        StorageError: it cannot be made.
    """
    real = os.path.realpath  # Path.resolve raises for a link to itself
    place = Path(real(folder))
    around = [path for path in paths if is_folder(path) and place.is_relative_to(real(path))]
    within = [file for file in files if Path(real(file)).is_relative_to(place)]
    if around or within:
        scored = around[0] if around else within[0]
        where = "lies within" if around else "holds"
        raise UsageError(
            f"{folder} {where} {scored}, which is scored: copies there would be scored as well the "
            "next time. Choose a folder elsewhere."
        )
    make_folder(folder)


def copy_flagged(files: Sequence[Path], folder: Path) -> int:
    """Copy the files into the folder; how many were copied.

    A copy has its file's name; of equal names, the second and later ones are numbered. Copies that
    an earlier call made there are replaced or removed. What others put there stays, and is never
    overwritten. A file that cannot be read any more is left out with a warning.
    """
    make_folder(folder)
    others = {path.name for path in folder.iterdir()} - recorded_names(folder)
    names = _names(files, others)
    copied = 0
    with own_files(folder, names) as ours:
        for file, name in zip(files, names, strict=True):
            try:
                source = file.open("rb")
            except OSError as error:
                _log.warning("%s is not copied: %s.", file, (error.strerror or "").lower())
                continue
            with (
                source,
                whole_file(folder / name, ours) as temporary,
                temporary.open("wb") as target,
            ):
                shutil.copyfileobj(source, target)
            copied += 1
    return copied


def _names(files: Iterable[Path], taken: Iterable[str]) -> list[str]:
    """A name of its own for each file; none is in ``taken``, also where case does not count."""
    used = {name.casefold() for name in taken}
    numbers = Counter[str]()
    names = []
    for file in files:
        wanted = name = _harmless(printable_path(Path(file.name)))
        stem, suffix = Path(wanted).stem, Path(wanted).suffix
        while name.casefold() in used:
            numbers[wanted] += 1
            name = f"{stem}-{numbers[wanted] + 1}{suffix}"
        used.add(name.casefold())
        names.append(name)
    return names


def _harmless(name: str) -> str:
    """The name without what could lead out of a folder, hide in it or be too long for it."""
    plain = _NOT_IN_NAMES.sub("_", name)
    plain = re.sub(r"^\.", "_", plain)
    suffix = Path(plain).suffix if len(Path(plain).suffix.encode()) <= _LONGEST_SUFFIX else ""
    stem = plain.removesuffix(suffix).encode()[: _LONGEST_NAME - len(suffix.encode())]
    return stem.decode("utf-8", "ignore") + suffix
