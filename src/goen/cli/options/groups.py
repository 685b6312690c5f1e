"""``--groups``: the scene, patient or video of each held-out image, from folders or a CSV file."""

import csv
from collections.abc import Sequence
from pathlib import Path

from goen.errors import DataCorrupt, UsageError

PARENT = "parent"
"""The folder that each image lies in is its group."""


def read_groups(given: str | None, folder: Path, files: Sequence[Path]) -> list[str] | None:
    """The group of each held-out image; ``None`` if there are no groups.

    Args:
        given: ``parent``, or a CSV file with the columns path and group, or group alone.
        folder: of the held-out images, which paths are relative to.
        files: of the held-out images, in their order; none if they are rows of one file.

    Raises:
        UsageError: an image without a group, or groups of two kinds.
        DataCorrupt: the file is no such table.
    """
    if given is None:
        return None
    places = [file.relative_to(folder) for file in files]
    if given == PARENT:
        if not places:
            raise UsageError(
                "--groups parent takes the folder of each held-out image, and these are rows of a "
                "file: give a CSV file with a column group, one row for each."
            )
        return [place.parent.as_posix() for place in places]
    rows = _table(Path(given))
    if not places:
        return [row["group"] for row in rows]
    if not all(row.get("path") for row in rows):
        raise UsageError(
            f"{given} needs a column path, with a value in each row: the held-out images have "
            "files."
        )
    by_path = {Path(row["path"]): row["group"] for row in rows}
    if len(by_path) < len(rows):
        raise UsageError(
            f"{given} should name each path once, got {len(by_path):,} paths in {len(rows):,} rows."
        )
    missing = [place.as_posix() for place in places if place not in by_path]
    if missing:
        raise UsageError(
            f"{given} has no group for {len(missing):,} of {len(places):,} held-out images, such "
            f"as {missing[0]}. Paths are relative to {folder}."
        )
    return [by_path[place] for place in places]


def _table(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, each with a group."""
    if not file.is_file():
        raise UsageError(f"--groups is {PARENT}, or a CSV file; there is no file {file}.")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataCorrupt(f"{file} is no CSV file: {error}.") from error
    if not rows or not all(row.get("group") for row in rows):
        raise DataCorrupt(f"{file} needs a column group, with a value in each row.")
    return rows
