"""The monitor: are the images still exchangeable with the held-out ones?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from goen.errors import UsageError
from goen.functional.conformal import Numbers
from goen.gate import Gate, Prediction
from goen.monitor.inputs import MonitoredGate, checked_scores, held_out_values
from goen.monitor.saving import MonitorParts, load_parts, monitor_bytes, write_monitor
from goen.monitor.state import (
    CLASS,
    FLAGGED_WINDOW,
    SCORE,
    Batch,
    Guarantee,
    MonitorState,
    StreamState,
)
from goen.monitor.streams import begin

_NO_FLAGS = np.zeros(0, dtype=np.bool_)


class Monitor:
    """Follows a stream of images and raises an alarm when they have changed, with a guarantee.

    The null hypothesis is that the images are exchangeable with each other and with the held-out
    images of the gate: their order carries no information. As long as it is true, the probability
    that the monitor **ever** raises an alarm is at most ``alarm_probability``, however long it
    runs, for every network, score and number of held-out images: conformal test martingales and
    Ville's inequality, see docs/monitor.md. With ``average_run_length`` the mean number of images
    until a false alarm is bounded instead.

    It follows the gate's score, each of its cues if it has several, the predicted class, and plain
    properties of the images, such as how bright they are. The guarantee holds for all of them
    together. An alarm says that the images have changed, not that they are bad; and images that
    depend on each other, such as frames of one video, are not exchangeable.

    Args:
        gate: whose predictions are followed.
        alarm_probability: of ever raising an alarm without a change, at most; 0.01 if neither this
            nor ``average_run_length`` is given.
        seed: of the random numbers that break ties.
        average_run_length: bound the mean number of images until a false alarm instead.
        properties: follow those of the images, too, if the gate has kept those of its held-out
            images; predictions must have them then (``gate.predict``).

    Raises:
        UsageError: an invalid number, or a gate that was saved without its held-out cues.
        FitError: fewer than 20 held-out images.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> monitor = Monitor.from_scores(rng.normal(size=500))
        >>> monitor.update(rng.normal(size=1000)).alarm
        False
        >>> print(monitor.update(rng.normal(1, 1, size=200)))
        alarm at image 1,038: score has moved since about image 1,001 (higher values)
    """

    gate: MonitoredGate | None
    _batch: Batch | None = None

    def __init__(
        self,
        gate: Gate,
        alarm_probability: float | None = None,
        seed: int = 0,
        *,
        average_run_length: int | None = None,
        properties: bool = True,
    ) -> None:
        guarantee = _guarantee(alarm_probability, average_run_length)
        values = held_out_values(gate, properties=properties)
        # Half of the allowed false alarms for the score, the rest in equal parts.
        others = len(values) - 1
        weights = {name: 0.5 / max(others, 1) for name in values}
        weights[SCORE] = 0.5 if others else 1.0
        streams = begin(values, weights, {CLASS}, seed=seed, starts=guarantee.starts)
        self.gate, self.guarantee = MonitoredGate.of(gate, properties=properties), guarantee
        self.streams, self.flags = streams, _NO_FLAGS

    @classmethod
    def from_scores(
        cls,
        held_out_scores: Numbers | Mapping[str, Numbers],
        alarm_probability: float | None = None,
        seed: int = 0,
        *,
        average_run_length: int | None = None,
    ) -> Self:
        """A monitor of scores from anywhere.

        Args:
            held_out_scores: ``(n,)``, of inputs that trained, fitted and selected nothing; or
                several streams of the same inputs by name, which share the guarantee equally.
            alarm_probability: see ``Monitor``.
            seed: see ``Monitor``.
            average_run_length: see ``Monitor``.
        """
        values = checked_scores(held_out_scores, "held-out scores")
        if not values:
            raise UsageError("Name at least one stream of held-out scores.")
        weights = {name: 1 / len(values) for name in values}
        guarantee = _guarantee(alarm_probability, average_run_length)
        streams = begin(values, weights, set(), seed=seed, starts=guarantee.starts)
        return cls.of_parts(MonitorParts(None, guarantee, streams, _NO_FLAGS))

    @classmethod
    def of_parts(cls, parts: MonitorParts) -> Self:
        """A monitor made of its parts, such as those that were saved."""
        monitor = cls.__new__(cls)
        monitor.gate, monitor.guarantee, monitor.streams, monitor.flags = parts
        return monitor

    @property
    def parts(self) -> MonitorParts:
        """What is saved of it."""
        return MonitorParts(self.gate, self.guarantee, self.streams, self.flags)

    def __repr__(self) -> str:
        return f"Monitor({', '.join(self.streams.names)}; {self.state})"

    @property
    def images(self) -> int:
        """How many images it has seen."""
        return self.streams.images

    def update(self, images: Prediction | Numbers | Mapping[str, Numbers]) -> MonitorState:
        """Take note of the next images, in their order, and return what is known now.

        The result does not depend on how a stream is divided into updates.

        Args:
            images: what the gate's ``predict`` returned; without a gate, scores ``(N,)`` or one
                number, or all streams by name.

        Raises:
            UsageError: a prediction of another gate, NaN, or other streams; nothing was counted.
        """
        if isinstance(images, Prediction):
            if self.gate is None:
                raise UsageError(
                    "This monitor was made from scores: give it prediction.score, or make one "
                    "with goen.Monitor(gate)."
                )
            return self.add(self.gate.values(images), np.asarray(images.is_ood))
        if self.gate is not None:
            raise UsageError(
                f"This monitor follows a gate's {', '.join(self.streams.names)}: give it what "
                "gate.predict returned."
            )
        return self.add(images)

    def add(
        self, given: Numbers | Mapping[str, Numbers], flagged: NDArray[np.bool_] | None = None
    ) -> MonitorState:
        """``update`` with the numbers of each stream, and whether the gate flagged the images."""
        values = checked_scores(given, "scores", self.streams.names)
        self._batch = self.streams.add(values, self.guarantee.alarm_line)
        if flagged is not None:
            self.flags = np.concatenate([self.flags, flagged])[-FLAGGED_WINDOW:]
        return self.state

    @property
    def state(self) -> MonitorState:
        """What is known after the last image."""
        streams = self.streams
        none = np.zeros((0, len(streams.streams)))
        flagged = low = high = None
        if self.flags.size:
            flagged = float(self.flags.mean())
            from scipy.stats import binomtest  # slow to import

            low, high = binomtest(int(self.flags.sum()), self.flags.size).proportion_ci()
        return MonitorState(
            images=self.images,
            log_e_value=float(streams.log_e_value.max()),
            alarm_line=self.guarantee.alarm_line,
            streams={
                name: StreamState(float(value), change_point)
                for name, value, change_point in zip(
                    streams.names, streams.log_e_value, streams.change_points, strict=True
                )
            },
            flagged=flagged,
            flagged_low=low,
            flagged_high=high,
            batch=self._batch or Batch(none, none),
        )

    def restart(self) -> None:
        """Restart the test, and with it the guarantee: e-values of 1, no alarm.

        The scores seen so far are kept: new images are still compared with the held-out images and
        all images since, and an alarm that had a cause comes again. Where the images have changed
        for good, make a new monitor with held-out images of the new kind.
        """
        self.streams = self.streams.restarted()

    def save(self, file: Path | str, *, overwrite: bool = False) -> None:
        """Write the monitor to one file, whole or not at all.

        Raises:
            UsageError: a file is there, and ``overwrite`` is not set.
        """
        write_monitor(monitor_bytes(self.parts), Path(file), overwrite=overwrite)

    @classmethod
    def load(cls, file: Path | str) -> Self:
        """The monitor that was saved in this file; it continues with the same numbers.

        Raises:
            ArtifactError: there is none, or it is damaged or of another version.
        """
        return cls.of_parts(load_parts(Path(file))[0])


def _guarantee(alarm_probability: float | None, average_run_length: int | None) -> Guarantee:
    if alarm_probability is None and average_run_length is None:
        alarm_probability = 0.01
    return Guarantee(alarm_probability, average_run_length)
