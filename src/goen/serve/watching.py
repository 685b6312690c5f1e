"""The monitor of a served gate: its evidence over time, kept in one file over restarts."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from goen.errors import ArtifactError, UsageError
from goen.gate import Gate, Prediction, concatenate
from goen.monitor import Monitor, MonitorState
from goen.monitor.inputs import WatchedGate
from goen.monitor.saving import load_monitor, save_monitor
from goen.monitor.state import change
from goen.runs.manifest import JsonObject, Manifest

_MOST_POINTS = 600
_AT_ONCE = 256


@dataclass(frozen=True)
class HistoryPoint:
    """The monitor at one moment.

    Attributes:
        seconds: since 1970.
        images: counted until then.
        evidence: the log evidence of each stream.
        flagged: the share flagged among the last 1,000 images.
    """

    seconds: float
    images: int
    evidence: Mapping[str, float]
    flagged: float

    def to_json(self) -> JsonObject:
        """As it is saved, and as the page reads it."""
        return {
            "seconds": self.seconds,
            "images": self.images,
            "evidence": dict(self.evidence),
            "flagged": self.flagged,
        }

    @classmethod
    def from_json(cls, point: Manifest) -> "HistoryPoint":
        """A point that was saved."""
        evidence = point.part("evidence")
        return cls(
            point.number("seconds"),
            point.integer("images"),
            {name: evidence.number(name) for name in evidence.content},
            point.number("flagged"),
        )


class WatchedStream:
    """A monitor that several threads use, and its history.

    The state is saved in one step: whoever is killed leaves the earlier state or the new one.

    Args:
        gate: whose predictions it is given.
        false_alarm: see ``Monitor``.
        file: of the state; it is not kept if not given.
        restart: begin the test of a kept monitor anew; see ``Monitor.restart``.

    Raises:
        UsageError: the gate was saved without what a monitor needs, or the state is that of another
            gate or bound.
        ArtifactError: the state is damaged.
    """

    def __init__(
        self, gate: Gate, false_alarm: float, file: Path | None = None, *, restart: bool = False
    ) -> None:
        self.file = file
        self.history: list[HistoryPoint] = []
        self._lock = Lock()
        self._unsaved = False
        self._pending: list[Prediction] = []
        if file is None or not file.exists():
            self._monitor = Monitor(gate, false_alarm)
            return
        self._monitor, extra = load_monitor(file)
        _check_same(self._monitor, gate, false_alarm, file)
        try:
            points = extra.part("history").parts("points")
            self.history = [HistoryPoint.from_json(point) for point in points]
        except ValueError as error:
            raise ArtifactError(f"{file} is not the state of a service: {error}.") from error
        if restart:
            self._monitor.restart()
            self._unsaved = True

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
            return self._monitor.state
        # Taken out first: what cannot be counted is an error once, not at every later call.
        pending, self._pending = self._pending, []
        state = self._monitor.update(concatenate(pending))
        self._unsaved = True
        evidence = {name: s.log_evidence for name, s in state.streams.items()}
        point = HistoryPoint(time.time(), state.images, evidence, state.flagged or 0.0)
        self.history.append(point)
        if len(self.history) > _MOST_POINTS:
            # Every second one, the last included: old and new stay equally far apart.
            self.history = self.history[len(self.history) % 2 :: 2] + self.history[-1:]
        return state

    def save(self) -> None:
        """Write the state, if it has changed."""
        if self.file is None:
            return
        with self._lock:
            self._counted()
            if not self._unsaved:
                return
            points = [point.to_json() for point in self.history]
            save_monitor(self._monitor, self.file, {"history": {"points": points}})
            self._unsaved = False

    def to_json(self) -> JsonObject:
        """For the page and for whoever asks."""
        with self._lock:
            state = self._counted()
            history = list(self.history)
        return {
            "images": state.images,
            "sentence": str(state),
            "promise": str(self._monitor.promise),
            "alarm": state.alarm,
            "alarm_line": state.alarm_line,
            "alarm_at": state.alarm_at,
            "since": state.since,
            "moved": {name: change(name, found) for name, found in state.moved.items()},
            "log_evidence": state.log_evidence,
            "streams": {name: s.log_evidence for name, s in state.streams.items()},
            "flagged": state.flagged,
            "flagged_low": state.flagged_low,
            "flagged_high": state.flagged_high,
            "history": [point.to_json() for point in history],
        }


def _check_same(monitor: Monitor, gate: Gate, false_alarm: float, file: Path) -> None:
    if monitor.gate is None or not monitor.gate.same_as(WatchedGate.of(gate)):
        raise UsageError(
            f"{file} is the state of another gate. Choose another folder with --state, or another "
            "name for this gate."
        )
    if monitor.promise.false_alarm != false_alarm:
        raise UsageError(
            f"{file} was begun with another bound on false alarms: {monitor.promise} Choose "
            "another folder with --state, or that bound."
        )
