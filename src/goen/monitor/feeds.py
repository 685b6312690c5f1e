"""Where the images of a watch come from: a folder that fills, or rows of ``goen score``."""

import os
import time
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple

from goen.data.images.finding import find_images
from goen.errors import UsageError, warn
from goen.io.files import printable, printable_path
from goen.io.limits import ROW_BYTES
from goen.io.manifest import JsonObject
from goen.monitor.journal import parse_row
from goen.scoring.pipeline import DEFAULT_BATCH_SIZE

# A file that was changed less than so many seconds ago may still be written.
_SETTLED = 1.0
# A file that cannot be read is tried again for so many seconds after its last change.
_PATIENCE = 60.0
# The ends of names under which browsers, copying programs and editors write what is not finished.
_UNFINISHED = (
    ".part", ".partial", ".crdownload", ".download", ".opdownload", ".filepart", ".incomplete",
    ".tmp", ".temp", ".aria2", ".!ut", ".!qb", ".swp", "~",
)  # fmt: skip
_READ_BYTES = 1 << 16


def check_folder(folder: Path, leave_out: Path | None = None) -> None:
    """Raise a UsageError if the folder is none, or if all of it is left out.

    Args:
        folder: to follow.
        leave_out: see ``FollowedFolder``.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Name one, or - for rows on standard input.")
    real = folder.resolve()
    if leave_out is not None and leave_out.resolve() in (real, *real.parents):
        raise UsageError(
            f"{folder} lies within {leave_out}, the folder of the watch, whose pictures are not "
            "counted. Choose another folder with --out."
        )


class FollowedFolder:
    """New pictures below a folder, oldest first, a batch at a time.

    Files with the usual names of unfinished uploads are passed over. So are folders that cannot be
    read, with one warning each, and the folder itself while it is gone.

    Args:
        folder: of ``check_folder``; is searched with all folders in it.
        is_new: whether a path, as ``goen score`` writes it, has not been counted; asked before each
            batch.
        every: seconds between two searches, for ever; ``None`` to search once. A file that was
            changed within the last second waits for the next search. So does one whose date lies
            in the future, as a camera's clock may have it, until it has not changed for a second.
        leave_out: the folder of the watch itself, whose pictures are not meant.
        arrays: whether NPY and NPZ files are pictures, too.
    """

    def __init__(
        self,
        folder: Path,
        is_new: Callable[[str], bool],
        *,
        every: float | None,
        leave_out: Path | None = None,
        arrays: bool = False,
    ) -> None:
        self._folder, self._is_new, self._every, self._arrays = folder, is_new, every, arrays
        self._beside = None if leave_out is None else Path(os.path.realpath(leave_out))
        self._waiting: dict[Path, tuple[_State, float]] = {}
        self._failed: dict[Path, _Failure] = {}
        self._warned: set[str] = set()

    def __iter__(self) -> Iterator[list[Path]]:
        """The batches; an empty one if a search found nothing."""
        while True:
            ordered = self._search()
            for start in range(0, len(ordered), DEFAULT_BATCH_SIZE):
                yield ordered[start : start + DEFAULT_BATCH_SIZE]
            if self._every is None:
                return
            if not ordered:
                yield []  # so that whoever waits can act, and is woken by a signal
                time.sleep(self._every)

    def gives_up(self, file: Path) -> bool:
        """Whether a file that could not be read is unreadable; if not, it will come again.

        It comes again whenever it has changed, and for a minute after that: it may be half a file,
        an empty one, or one that its owner has not made readable yet.
        """
        now, state = time.monotonic(), _state(file)
        before = self._failed.get(file)
        if before is None or before.state != state:
            before = _Failure(state, since=now, again=now, wait=_SETTLED / 2)
        given_up = self._every is None or now - before.since >= _PATIENCE
        wait = 2 * before.wait
        again = float("inf") if given_up else min(now + wait, before.since + _PATIENCE)
        self._failed[file] = _Failure(state, before.since, again, wait)
        return given_up

    def _search(self) -> list[Path]:
        """One pass over the folder."""
        found = []
        before, self._waiting = self._waiting, {}
        failed, self._failed = self._failed, {}
        for file in find_images(self._folder, arrays=self._arrays, refused=self._pass_over):
            if self._is_left_out(file):
                continue
            state = _state(file)
            if state is None:
                continue
            failure = failed.get(file)
            if failure is not None and failure.state == state:
                self._failed[file] = failure
                if time.monotonic() < failure.again:
                    continue
            # Since when it is so, by a clock that is never set.
            earlier, since = before.get(file, (None, 0.0))
            since = since if state == earlier else time.monotonic()
            changed = state[0]
            is_old = changed <= time.time() - _SETTLED or time.monotonic() - since >= _SETTLED
            if self._every is None or is_old:
                found.append((changed, str(file), file))
            else:
                self._waiting[file] = (state, since)
        return [file for _, _, file in sorted(found)]

    def _is_left_out(self, file: Path) -> bool:
        if file.name.lower().endswith(_UNFINISHED) or not self._is_new(printable_path(file)):
            return True
        # Not Path.resolve, which raises for a link to itself.
        return self._beside is not None and self._beside in Path(os.path.realpath(file)).parents

    def _pass_over(self, error: OSError) -> None:
        place = printable(str(error.filename))
        if place not in self._warned:
            self._warned.add(place)
            warn(f"{place} cannot be read ({error.strerror}) and is passed over while it is so.")


_State = tuple[float, int, float]
"""Of a file: when its content was changed, its size, when anything of it was changed."""


class _Failure(NamedTuple):
    """A file that could not be read.

    Attributes:
        state: of the file then.
        since: when it was found so, by a clock that is never set.
        again: when it is to be read again, if it has not changed.
        wait: seconds between the last two times.
    """

    state: _State | None
    since: float
    again: float
    wait: float


def _state(file: Path) -> _State | None:
    """``None`` of a file that has gone."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    except OSError:  # whoever scores it gets the reason
        return 0.0, 0, 0.0
    return status.st_mtime, status.st_size, status.st_ctime


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
            if len(rest) > ROW_BYTES:
                raise UsageError(
                    f"Line {number + 1} is not a row of goen score: it is longer than "
                    f"{ROW_BYTES:,} bytes. Expected JSON lines."
                )
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
