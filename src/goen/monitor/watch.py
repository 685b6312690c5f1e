"""A monitor in a folder: its state, a row for every image, and events; safe to kill at any time.

The rows of a batch are written first, the state last and in one step. It holds the lengths that
the two files of rows had then. Whoever resumes cuts both files to these lengths, so a batch that
was not finished is as if it had never been begun.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from goen.errors import ArtifactError, UsageError
from goen.files import Own, check_free, storage_errors
from goen.gate import Gate
from goen.monitor.inputs import WatchedGate
from goen.monitor.monitor import Monitor
from goen.monitor.promise import Promise
from goen.monitor.saving import MONITOR, load_monitor, save_monitor
from goen.monitor.state import MonitorState
from goen.runs.manifest import JsonObject, Manifest
from goen.runs.recognise import first_row
from goen.runs.stages import alone_in

STATE, IMAGES, EVENTS = "monitor.safetensors", "images.jsonl", "events.jsonl"


def _is_rows(name: str) -> Own:
    def recognise(path: Path) -> bool:
        return name in first_row(path) or not path.stat().st_size

    return Own("a file of a watch of goen", recognise)


OWN_FILES = {STATE: MONITOR, IMAGES: _is_rows("log_evidence"), EVENTS: _is_rows("event")}
"""The files of a watch, by name, and how they are recognised."""


@dataclass(frozen=True)
class WatchSettings:
    """What is promised, if it is not as before.

    Attributes:
        false_alarm: see ``Monitor``; 0.01 in a new folder if neither promise is given.
        average_run_length: see ``Monitor``.
        seed: see ``Monitor``; 0 in a new folder if not given.
    """

    false_alarm: float | None = None
    average_run_length: int | None = None
    seed: int | None = None


class Watch:
    """A monitor whose every image is on record in a folder; use ``open_watch``.

    Attributes:
        folder: of the watch.
        monitor: as of the last batch.
        opened: the event with which it began or was resumed.
        unreadable: how many files could not be read.
    """

    def __init__(self, folder: Path, monitor: Monitor, gate_name: str) -> None:
        self.folder, self.monitor, self.gate_name = folder, monitor, gate_name
        self.opened: JsonObject = {}
        self.unreadable = 0
        self._seen: set[int] = set()
        self._sizes = {IMAGES: 0, EVENTS: 0}
        self._on_record = True

    @classmethod
    def begun(cls, folder: Path, gate: Gate, name: str, settings: WatchSettings) -> Self:
        """A new watch in a folder without one."""
        for file, ours in OWN_FILES.items():
            check_free(folder / file, ours)
        # An event may be left of a watch that was killed before its first state.
        images = folder / IMAGES
        if images.exists() and images.stat().st_size:
            raise UsageError(
                f"{folder} holds the rows of a watch, but not its state ({STATE}). Restore it, or "
                "choose another folder."
            )
        monitor = Monitor(
            gate,
            settings.false_alarm,
            settings.seed or 0,
            average_run_length=settings.average_run_length,
        )
        watch = cls(folder, monitor, name)
        watch.opened = watch._event("started", gate=name, promise=str(monitor.promise))
        watch._write([], [watch.opened])
        return watch

    @classmethod
    def resumed(cls, folder: Path, gate: Gate, name: str, settings: WatchSettings) -> Self:
        """The watch that was left in a folder, by whatever means."""
        monitor, extra = load_monitor(folder / STATE)
        _check_settings(folder, monitor, gate, settings)
        watch = cls(folder, monitor, name)
        try:
            watch.unreadable = int(extra.number("unreadable"))
            sizes = {name: int(extra.number(name)) for name in watch._sizes}
        except ValueError as error:
            raise ArtifactError(
                f"{folder / STATE} is not the state of a watch: {error}."
            ) from error
        for file, size in sizes.items():
            _cut(folder / file, size)
        watch._sizes = sizes
        for file in sizes:
            for row in read_json_lines(folder / file):
                if "path" in row:
                    watch._seen.add(_hash(row.text("path")))
        watch.opened = watch._event("resumed", gate=name, promise=str(monitor.promise))
        watch._write([], [watch.opened])
        return watch

    def is_new(self, path: str) -> bool:
        """Whether no image of this path was counted before."""
        return _hash(path) not in self._seen

    def add(self, rows: Sequence[JsonObject]) -> list[JsonObject]:
        """Count the images of these rows of ``goen score``; what happened, as events.

        Rows whose path was counted before are passed over, so that the same rows can be given
        again after an interruption.

        Raises:
            UsageError: a row that is none, or of another gate; nothing was counted.
            StorageError: the rows could not be written. Open the watch again: there they do not
                count yet.
        """
        self._check_on_record()
        fresh = self._fresh(rows)
        readable = [row for row in fresh if row.get("label") is not None]
        gate = self.monitor.gate
        assert gate is not None  # a watch is always of a gate
        observed = gate.from_rows(readable)
        before = self.monitor.state
        state = self.monitor.add(observed)
        events = [
            self._event("unreadable", path=row.get("path"), error=row.get("error"))
            for row in fresh
            if row.get("label") is None
        ]
        self.unreadable += len(events)
        events += self._findings(before, state)
        self._write([*self._image_rows(readable, state)], events)
        self._seen |= {_hash(str(row["path"])) for row in fresh if row.get("path") is not None}
        return events

    def _fresh(self, rows: Sequence[JsonObject]) -> list[JsonObject]:
        """The rows whose path is not known, and those without a path."""
        fresh, here = [], set()
        for row in rows:
            path = row.get("path")
            if path is not None and not (isinstance(path, str) and _is_unicode(path)):
                raise UsageError(
                    f"This is not a row of goen score: its path should be text, got {path!r:.80}."
                )
            if path is not None and (not self.is_new(path) or path in here):
                continue
            here.add(path)
            fresh.append(row)
        return fresh

    def restart(self) -> JsonObject:
        """Begin a new test after an alarm; see ``Monitor.restart``."""
        self._check_on_record()
        self.monitor.restart()
        event = self._event("restarted", promise=str(self.monitor.promise))
        self._write([], [event])
        return event

    def _findings(self, before: MonitorState, state: MonitorState) -> list[JsonObject]:
        """An event for each stream that moved with these images; the first is the alarm."""
        new = {name: found for name, found in state.moved.items() if name not in before.moved}
        alarmed = before.alarm
        names, first = list(state.streams), before.images + 1
        events = []
        for name, found in new.items():
            events.append(
                self._event(
                    "moved" if alarmed else "alarm",
                    image=found.at,
                    log_evidence=round(
                        float(state.batch.log_evidence[found.at - first, names.index(name)]), 4
                    ),
                    stream=name,
                    since=found.since,
                    direction=found.direction,
                )
            )
            alarmed = True
        return events

    def _event(self, event: str, **fields: object) -> JsonObject:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        state = self.monitor.state
        told = {"image": state.images, "log_evidence": round(state.log_evidence, 4), **fields}
        return {"event": event, "time": now, **told}  # type: ignore[dict-item]

    def _image_rows(self, rows: Sequence[JsonObject], state: MonitorState) -> Iterator[JsonObject]:
        names = list(state.streams)
        first = state.images - len(rows) + 1
        p_values = state.batch.p_values
        evidence = state.batch.log_evidence.round(4)
        for number, row in enumerate(rows):
            yield {
                "image": first + number,
                "path": row.get("path"),
                "label": row["label"],
                "score": row["score"],
                "is_ood": row["is_ood"],
                "p": {n: float(f"{p:.6g}") for n, p in zip(names, p_values[number], strict=True)},
                "log_evidence": dict(zip(names, evidence[number].tolist(), strict=True)),
            }

    def _check_on_record(self) -> None:
        if not self._on_record:
            raise UsageError(
                f"The last images could not be written to {self.folder}, so the monitor is ahead "
                "of what is on record. Open the watch again; it continues from its last state."
            )

    def _write(self, images: Sequence[JsonObject], events: Sequence[JsonObject]) -> None:
        self._on_record = False
        for name, rows in ((IMAGES, images), (EVENTS, events)):
            self._sizes[name] = _append(self.folder / name, rows, self._sizes[name])
        extra: JsonObject = {
            **self._sizes,
            "unreadable": self.unreadable,
            "gate": self.gate_name,
        }
        save_monitor(self.monitor, self.folder / STATE, extra)
        self._on_record = True


@contextmanager
def open_watch(
    folder: Path, gate: Gate, gate_name: str, settings: WatchSettings
) -> Iterator[Watch]:
    """The watch of this folder, begun or resumed, for one process at a time.

    Raises:
        UsageError: another process is at work in it, it was made with another gate or promise, or
            the folder holds something else.
        ArtifactError: its state is damaged.
    """
    if (folder / "run.json").exists():
        raise UsageError(f"{folder} holds a study of goen. Choose another folder with --out.")
    with alone_in(folder):
        known = (folder / STATE).exists()
        yield (Watch.resumed if known else Watch.begun)(folder, gate, gate_name, settings)


def _check_settings(folder: Path, monitor: Monitor, gate: Gate, settings: WatchSettings) -> None:
    watched, given = monitor.gate, WatchedGate.of(gate)
    if watched is None or not watched.same_as(given):
        raise UsageError(
            f"The watch in {folder} is of another gate. Choose another folder with --out."
        )
    asked = (settings.false_alarm, settings.average_run_length)
    if asked != (None, None) and Promise(*asked) != monitor.promise:
        raise UsageError(
            f"The watch in {folder} was begun with another promise ({monitor.promise}) Choose "
            "another folder with --out, or leave the option out."
        )
    if settings.seed not in (None, monitor.streams.seed):
        raise UsageError(
            f"The watch in {folder} was begun with seed {monitor.streams.seed}, got "
            f"{settings.seed}. Leave the option out."
        )


def _append(file: Path, rows: Sequence[JsonObject], size: int) -> int:
    """Append the rows to a file of this size and bring them to the disk; the new size."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # Half a character, which JSON may hold, becomes its escape again.
    encoded = text.encode("utf-8", "backslashreplace")
    with storage_errors(file), file.open("ab") as content:
        content.truncate(size)  # a write that failed may have left half a row
        content.write(encoded)
        content.flush()
        os.fsync(content.fileno())
    return size + len(encoded)


def _cut(file: Path, size: int) -> None:
    """Remove what was written after the state was saved."""
    found = file.stat().st_size if file.is_file() else 0
    if found < size:
        raise ArtifactError(
            f"{file} has {found:,} bytes, but had {size:,} when the state of the watch was saved. "
            "Restore it, or choose another folder with --out."
        )
    if found > size:
        os.truncate(file, size)


def _is_unicode(text: str) -> bool:
    """Whether it can be written: JSON may hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _hash(path: str) -> int:
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest)


def read_json_lines(file: Path) -> Iterator[Manifest]:
    """The objects of a file of JSON lines.

    Raises:
        ArtifactError: a line that is none; the message names it.
    """
    with file.open(encoding="utf-8") as content:
        for number, line in enumerate(content, 1):
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError) as error:
                raise ArtifactError(f"{file}, line {number}, is damaged: {error}.") from error
            yield Manifest(row)
