"""A monitor that is kept: its state in one file, and its history or a row for every image.

``goen watch`` and ``goen serve`` keep their monitors so; both can be killed at any time.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from goen.errors import ArtifactError, UsageError
from goen.gate import Gate, Prediction, concatenate
from goen.io.manifest import JsonObject
from goen.io.stages import alone_in
from goen.monitor.inputs import MonitoredGate
from goen.monitor.journal import STATE, Journal
from goen.monitor.monitor import Monitor
from goen.monitor.saving import load_parts, monitor_bytes, write_monitor
from goen.monitor.state import Guarantee, MonitorState, change

WATCH = "watch"
"""The kind of the folder of ``goen watch``."""
_MOST_POINTS = 600
_AT_ONCE = 256


@dataclass(frozen=True)
class MonitorSettings:
    """What is guaranteed, if it is not as before.

    Attributes:
        alarm_probability: see ``Monitor``; 0.01 for a new one if no guarantee is given.
        average_run_length: see ``Monitor``.
        seed: see ``Monitor``; 0 for a new one if not given.
    """

    alarm_probability: float | None = None
    average_run_length: int | None = None
    seed: int | None = None

    def check(self, monitor: Monitor, gate: Gate, file: Path) -> None:
        """Raise a UsageError if the monitor in a file is of another gate or has other settings."""
        if monitor.gate is None or not monitor.gate.same_as(MonitoredGate.of(gate)):
            raise UsageError(f"{file} is the monitor of another gate. Choose another folder.")
        asked = (self.alarm_probability, self.average_run_length)
        if asked != (None, None) and Guarantee(*asked) != monitor.guarantee:
            raise UsageError(
                f"{file} has another guarantee: {monitor.guarantee} Choose another folder, or "
                "leave the option out."
            )
        if self.seed not in (None, monitor.streams.seed):
            raise UsageError(
                f"{file} was begun with seed {monitor.streams.seed}, got {self.seed}. Leave the "
                "option out."
            )


class KeptMonitor:
    """A monitor that several threads may use, begun or continued from its file.

    Args:
        gate: whose images it counts.
        settings: the guarantee and the seed.
        file: of the state; it is not kept if not given.
        journal: a row for every image; without one there is a short history.
        restart: restart the test; see ``Monitor.restart``.

    Attributes:
        monitor: without the images that are yet to be counted; use ``state``.
        opened: the events with which it began or was continued.
        history: a few hundred moments, as the page of a service reads them: ``seconds`` since
            1970, ``images``, ``log_e_values`` by stream, and the share ``flagged``; none with a
            journal, which has them all.

    Raises:
        UsageError: the gate has not what a monitor needs, or the file is of another gate or
            guarantee.
        ArtifactError: the file is damaged.
    """

    def __init__(
        self,
        gate: Gate,
        settings: MonitorSettings,
        file: Path | None = None,
        *,
        journal: Journal | None = None,
        restart: bool = False,
    ) -> None:
        self.file, self.journal = file, journal
        self.history: list[JsonObject] = []
        self._lock = Lock()
        self._pending: list[Prediction] = []
        self._unsaved = False
        self._on_record = True
        known = file is not None and file.exists() and self._resume(file, gate, settings)
        if not known:
            if journal is not None:
                journal.begin()
            self.monitor = Monitor(
                gate,
                settings.alarm_probability,
                settings.seed or 0,
                average_run_length=settings.average_run_length,
            )
        guarantee = str(self.monitor.guarantee)
        gate_name = {} if journal is None else {"gate": journal.gate}
        what = "resumed" if known else "started"
        self.opened = [self._event(what, **gate_name, guarantee=guarantee)]
        if restart:
            self.monitor.restart()
            self._unsaved = True
            self.opened.append(self._event("restarted", guarantee=guarantee))
        if journal is not None:
            self._record([], self.opened)

    def _resume(self, file: Path, gate: Gate, settings: MonitorSettings) -> bool:
        """Continue from the file; False if it is of another gate or guarantee and counted nothing.

        An error of the first image, such as rows of another gate, leaves such a file.
        """
        parts, extra = load_parts(file)
        self.monitor = Monitor.of_parts(parts)
        try:
            settings.check(self.monitor, gate, file)
        except UsageError:
            if self.monitor.state.images:
                raise
            return False
        try:
            self.history = [point.content for point in extra.parts("history")]
            if self.journal is not None:
                self.journal.resume(extra.part("journal"))
        except ValueError as error:
            raise ArtifactError(f"{file} is not a monitor that was kept so: {error}.") from error
        return True

    @property
    def state(self) -> MonitorState:
        """What the monitor knows after all images so far."""
        with self._lock:
            return self._counted()

    def add(self, prediction: Prediction) -> None:
        """Take note of the images of a batch.

        The monitor counts many at once: an update takes a millisecond, of one image or of many,
        and its result does not depend on how the images are divided.
        """
        with self._lock:
            self._pending.append(prediction)
            if sum(map(len, self._pending)) >= _AT_ONCE:
                self._counted()

    def _counted(self) -> MonitorState:
        """Count what is pending; whoever calls it holds the lock."""
        if not self._pending:
            return self.monitor.state
        # Taken out first: what cannot be counted is an error once, not at every later call.
        pending, self._pending = self._pending, []
        state = self.monitor.update(concatenate(pending))
        self._unsaved = True
        self.history.append(
            {
                "seconds": time.time(),
                "images": state.images,
                "log_e_values": state.log_e_values,
                "flagged": state.flagged,
            }
        )
        if len(self.history) > _MOST_POINTS:
            # Every second one, the last included: old and new stay equally far apart.
            self.history = self.history[len(self.history) % 2 :: 2] + self.history[-1:]
        return state

    def save(self) -> None:
        """Write the state, if it has changed; images may be added meanwhile."""
        with self._lock:
            self._counted()
            if self.file is None or not self._unsaved:
                return
            journal = {} if self.journal is None else {"journal": self.journal.to_json()}
            content = monitor_bytes(self.monitor.parts, {"history": self.history, **journal})
            self._unsaved = False
        try:
            write_monitor(content, self.file, overwrite=True)
        except BaseException:
            self._unsaved = True
            raise

    def add_rows(self, rows: Sequence[JsonObject]) -> list[JsonObject]:
        """Count the images of these rows of ``goen score`` and save; what happened, as events.

        Rows whose path was counted before are passed over, so that the same rows can be given
        again after an interruption.

        Raises:
            UsageError: a row that is none, or of another gate; nothing was counted.
            StorageError: the rows could not be written. Open the monitor again: there they do not
                count yet.
        """
        journal, gate = self.journal, self.monitor.gate
        assert journal is not None
        assert gate is not None
        if not self._on_record:
            raise UsageError(
                f"The last images could not be written to {journal.folder}, so the monitor is "
                "ahead of what is on record. Open it again; it continues from its last state."
            )
        fresh = journal.fresh(rows)
        if any(row.get("label") is None and row.get("error") is None for row in fresh):
            raise UsageError(
                "This is not a row of goen score: it has neither a label nor an error."
            )
        readable = [row for row in fresh if row.get("label") is not None]
        before = self.monitor.state
        state = self.monitor.update(gate.from_rows(readable))
        events = [
            self._event("unreadable", path=row.get("path"), error=row.get("error"))
            for row in fresh
            if row.get("label") is None
        ]
        events += self._changes(before, state)
        self._record([*_image_rows(readable, state)], events)
        return events

    def _record(self, images: Sequence[JsonObject], events: Sequence[JsonObject]) -> None:
        assert self.journal is not None
        self._on_record = False
        self.journal.append(images, events)
        self._unsaved = True
        self.save()
        self._on_record = True

    def _changes(self, before: MonitorState, state: MonitorState) -> list[JsonObject]:
        """An event for each stream that moved with these images; the first is the alarm."""
        names, first = list(state.streams), before.images + 1
        events: list[JsonObject] = []
        for name, found in state.moved.items():
            if name not in before.moved:
                value = state.batch.log_e_value[found.at - first, names.index(name)]
                events.append(
                    self._event(
                        "moved" if before.alarm or events else "alarm",
                        image=found.at,
                        log_e_value=round(float(value), 4),
                        stream=name,
                        since=found.since,
                        direction=found.direction,
                    )
                )
        return events

    def _event(self, event: str, **fields: object) -> JsonObject:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        state = self.monitor.state
        told = {"image": state.images, "log_e_value": round(state.log_e_value, 4), **fields}
        return {"event": event, "time": now, **told}  # type: ignore[dict-item]

    def to_json(self) -> JsonObject:
        """For the page of a service, and for whoever asks."""
        with self._lock:
            state = self._counted()
            history = list(self.history)
        return {
            "images": state.images,
            "sentence": str(state),
            "guarantee": str(self.monitor.guarantee),
            "alarm": state.alarm,
            "alarm_line": state.alarm_line,
            "alarm_at": state.alarm_at,
            "since": state.since,
            "moved": {name: change(name, found) for name, found in state.moved.items()},
            "log_e_value": state.log_e_value,
            "streams": state.log_e_values,
            "flagged": state.flagged,
            "flagged_low": state.flagged_low,
            "flagged_high": state.flagged_high,
            "history": history,
        }


def _image_rows(rows: Sequence[JsonObject], state: MonitorState) -> Iterator[JsonObject]:
    names = list(state.streams)
    first = state.images - len(rows) + 1
    p_values = state.batch.p_values
    log_e_values = state.batch.log_e_value.round(4)
    for number, row in enumerate(rows):
        yield {
            "image": first + number,
            "path": row.get("path"),
            "label": row["label"],
            "score": row["score"],
            "is_ood": row["is_ood"],
            "p": {n: float(f"{p:.6g}") for n, p in zip(names, p_values[number], strict=True)},
            "log_e_value": dict(zip(names, log_e_values[number].tolist(), strict=True)),
        }


@contextmanager
def open_monitor_folder(
    folder: Path, gate: Gate, gate_name: str, settings: MonitorSettings, *, restart: bool = False
) -> Iterator[KeptMonitor]:
    """The monitor of this folder with its journal, for one process at a time.

    Raises:
        UsageError: another process is at work in it, it is of another gate or guarantee, or the
            folder holds something else.
        ArtifactError: its state is damaged.
    """
    with alone_in(folder, WATCH):
        journal = Journal(folder, gate_name)
        yield KeptMonitor(gate, settings, folder / STATE, journal=journal, restart=restart)
