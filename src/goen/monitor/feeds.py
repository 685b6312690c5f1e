"""Where the images of a watch come from: a folder that fills, or rows of ``goen score``."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TextIO

from goen.data.pictures import find_pictures
from goen.errors import UsageError
from goen.files import printable_path
from goen.gate.score_files import DEFAULT_BATCH_SIZE
from goen.runs.manifest import JsonObject

# A file that was changed less than so many seconds ago may still be written.
_SETTLED = 1.0


def follow_folder(
    folder: Path,
    is_new: Callable[[str], bool],
    *,
    every: float | None,
    leave_out: Path | None = None,
) -> Iterator[list[Path]]:
    """New pictures below a folder, oldest first, a batch at a time.

    Args:
        folder: is searched with all folders in it.
        is_new: whether a path, as ``goen score`` writes it, has not been seen; asked before each
            batch.
        every: seconds between two searches, for ever; ``None`` to search once. A file that was
            changed within the last second waits for the next search.
        leave_out: a folder whose pictures are not meant, such as that of the watch itself.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Name one, or - for rows on standard input.")
    beside = None if leave_out is None else leave_out.resolve()
    while True:
        latest = None if every is None else time.time() - _SETTLED
        found = []
        for file in find_pictures(folder):
            if not is_new(printable_path(file)):
                continue
            if beside is not None and beside in file.resolve().parents:
                continue
            changed = _changed(file)
            if changed is not None and (latest is None or changed <= latest):
                found.append((changed, str(file), file))
        ordered = [file for _, _, file in sorted(found, key=lambda item: item[:2])]
        for start in range(0, len(ordered), DEFAULT_BATCH_SIZE):
            yield ordered[start : start + DEFAULT_BATCH_SIZE]
        if every is None:
            return
        if not ordered:
            yield []  # so that whoever waits can act, and is woken by a signal
            time.sleep(every)


def _changed(file: Path) -> float | None:
    """When a file was changed; ``None`` if it has gone."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return None


def read_rows(stream: TextIO) -> Iterator[list[JsonObject]]:
    """Rows of JSON lines, as many as have come, at most a batch at a time.

    Raises:
        UsageError: a line that is not a JSON object; rows before it have been given out.
    """
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    Thread(target=read, daemon=True, name="rows of goen score").start()
    number, ended = 0, False
    while not ended:
        batch: list[JsonObject] = []
        line = lines.get()
        while True:
            if line is None:
                ended = True
                break
            number += 1
            if line.strip():
                try:
                    batch.append(_row(line))
                except ValueError as error:
                    if batch:
                        yield batch
                    raise UsageError(
                        f"Line {number} is not a row of goen score: {error}. Expected JSON lines."
                    ) from error
            if len(batch) == DEFAULT_BATCH_SIZE:
                break
            try:
                line = lines.get_nowait()
            except Empty:
                break
        if batch:
            yield batch


def _row(line: str) -> JsonObject:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    return row
