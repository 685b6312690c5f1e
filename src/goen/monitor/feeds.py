"""Where the images of a watch come from: a folder that fills, or rows of ``goen score``."""

import os
import time
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path

from goen.data.images.finding import find_images
from goen.errors import UsageError
from goen.io.files import printable_path
from goen.io.manifest import JsonObject
from goen.monitor.journal import parse_row
from goen.scoring.pipeline import DEFAULT_BATCH_SIZE

# A file that was changed less than so many seconds ago may still be written.
_SETTLED = 1.0
_READ_BYTES = 1 << 16


def check_folder(folder: Path, leave_out: Path | None = None) -> None:
    """Raise a UsageError if the folder is none, or if all of it is left out.

    Args:
        folder: to follow.
        leave_out: see ``follow_folder``.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Name one, or - for rows on standard input.")
    real = folder.resolve()
    if leave_out is not None and leave_out.resolve() in (real, *real.parents):
        raise UsageError(
            f"{folder} lies within {leave_out}, the folder of the watch, whose pictures are not "
            "counted. Choose another folder with --out."
        )


def follow_folder(
    folder: Path,
    is_new: Callable[[str], bool],
    *,
    every: float | None,
    leave_out: Path | None = None,
    arrays: bool = False,
) -> Iterator[list[Path]]:
    """New pictures below a folder, oldest first, a batch at a time.

    Args:
        folder: of ``check_folder``; is searched with all folders in it.
        is_new: whether a path, as ``goen score`` writes it, has not been seen; asked before each
            batch.
        every: seconds between two searches, for ever; ``None`` to search once. A file that was
            changed within the last second waits for the next search. So does one whose date lies
            in the future, as a camera's clock may have it, until it has not changed for a second.
        leave_out: the folder of the watch itself, whose pictures are not meant.
        arrays: whether NPY and NPZ files are pictures, too.
    """
    beside = None if leave_out is None else Path(os.path.realpath(leave_out))
    waiting: dict[Path, tuple[tuple[float, int], float]] = {}
    while True:
        found, before = [], waiting
        waiting = {}
        for file in find_images(folder, arrays=arrays):
            if not is_new(printable_path(file)):
                continue
            # Not Path.resolve, which raises for a link to itself.
            if beside is not None and beside in Path(os.path.realpath(file)).parents:
                continue
            seen = _date_and_size(file)
            if seen is None:
                continue
            # Since when it is so, by a clock that is never set.
            earlier, since = before.get(file, (None, 0.0))
            since = since if seen == earlier else time.monotonic()
            is_old = seen[0] <= time.time() - _SETTLED or time.monotonic() - since >= _SETTLED
            if every is None or is_old:
                found.append((seen[0], str(file), file))
            else:
                waiting[file] = (seen, since)
        ordered = [file for _, _, file in sorted(found)]
        for start in range(0, len(ordered), DEFAULT_BATCH_SIZE):
            yield ordered[start : start + DEFAULT_BATCH_SIZE]
        if every is None:
            return
        if not ordered:
            yield []  # so that whoever waits can act, and is woken by a signal
            time.sleep(every)


def _date_and_size(file: Path) -> tuple[float, int] | None:
    """``None`` of a file that has gone."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    except OSError:  # whoever scores it gets the reason
        return 0.0, 0
    return status.st_mtime, status.st_size


def read_rows(stream: BufferedIOBase) -> Iterator[list[JsonObject]]:
    """Rows of JSON lines, as many as have come, at most a batch at a time.

    Raises:
        UsageError: a line that is not a JSON object, or a stream that cannot be read further; rows
            before it have been given out.
    """
    number, ended = 0, False
    rest = bytearray()
    while not ended:
        try:
            part = stream.read1(_READ_BYTES)  # waits until something has come, and not for more
        except OSError as error:
            raise UsageError(f"The rows cannot be read: {error}.") from error
        ended = not part
        rest += part or b"\n"  # the last line may have no end
        if not ended and b"\n" not in part:
            continue
        *lines, rest = rest.split(b"\n")
        batch: list[JsonObject] = []
        for line in lines:
            number += 1
            try:
                if line.strip():
                    batch.append(parse_row(line))
            except ValueError as error:
                yield batch
                raise UsageError(
                    f"Line {number} is not a row of goen score: {error}. Expected JSON lines."
                ) from error
            if len(batch) == DEFAULT_BATCH_SIZE:
                yield batch
                batch = []
        if batch:
            yield batch
