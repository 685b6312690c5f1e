"""What a monitor guarantees about false alarms, and what it reports: e-values, alarm, changes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from goen.checks import check_number
from goen.errors import UsageError
from goen.functional.martingales import Direction, Starts
from goen.functional.ranking import Floats

SCORE = "score"
CLASS = "predicted class"
"""The names of two streams; the others are called as the cues that they follow."""
PROPERTY = "image "
"""What the name of a stream begins with that follows a property of the images."""
FLAGGED_WINDOW = 1000
"""The share flagged is that of so many last images."""


@dataclass(frozen=True)
class Guarantee:
    """One of two bounds on false alarms, for as long as the images do not change.

    Attributes:
        alarm_probability: that an alarm is ever raised, however long the monitor runs.
        average_run_length: the mean number of images until a false alarm, if that is bounded
            instead; there will be false alarms then.
    """

    alarm_probability: float | None
    average_run_length: int | None = None

    def __post_init__(self) -> None:
        if (self.alarm_probability is None) == (self.average_run_length is None):
            raise UsageError("Give either alarm_probability or average_run_length.")
        if self.alarm_probability is not None:
            check_number("alarm_probability", self.alarm_probability, at_least=1e-12, below=1)
            object.__setattr__(self, "alarm_probability", float(self.alarm_probability))
        if self.average_run_length is not None:
            length = self.average_run_length
            check_number("average_run_length", length, whole=True, at_least=10, at_most=10**12)
            object.__setattr__(self, "average_run_length", int(length))

    @property
    def starts(self) -> Starts:
        """How the e-value is built up: see ``goen.functional.martingales``."""
        return "once" if self.average_run_length is None else "restart"

    @property
    def alarm_line(self) -> float:
        """The log e-value at which an alarm is raised.

        With c streams of weights that sum to 1, each alarmed where its e-value times its weight
        reaches exp(alarm_line): the probability of ever reaching it is at most 1 / exp(alarm_line)
        (Ville's inequality and the union bound). With an average run length N the e-values are
        Shiryaev-Roberts statistics: the probability to reach 2 N within n images is at most
        n / (2 N) for all streams together, so the mean number of images until one does is at
        least N.
        """
        if self.average_run_length is None:
            return -math.log(self.alarm_probability or 1.0)
        return math.log(2 * self.average_run_length)

    def __str__(self) -> str:
        if self.average_run_length is None:
            return (
                "As long as the images do not change, the probability that this monitor ever "
                f"raises an alarm is at most {self.alarm_probability:.3g}."
            )
        return (
            "This monitor bounds the mean time between false alarms, not their probability: as "
            f"long as the images do not change, an alarm comes on average after "
            f"{self.average_run_length:,} images or more."
        )


@dataclass(frozen=True)
class ChangePoint:
    """A stream whose e-value has reached the alarm line.

    Attributes:
        at: the image at which it did, counted from 1.
        since: the estimated first image after the change: the start from which on the best single
            bet had gained most by then.
        direction: whether that bet was on higher scores, on lower ones, or on another shape.
    """

    at: int
    since: int
    direction: Direction


@dataclass(frozen=True)
class StreamState:
    """One of the numbers that a monitor follows.

    Attributes:
        log_e_value: the logarithm of its e-value times its weight; compare it with the monitor's
            ``alarm_line``.
        change_point: where it has moved; ``None`` as long as it has not.
    """

    log_e_value: float
    change_point: ChangePoint | None

    @property
    def moved(self) -> bool:
        """Whether it has been found to have changed."""
        return self.change_point is not None


@dataclass(frozen=True)
class Batch:
    """The images of the last update, ``(B, J)`` with one column per stream.

    Attributes:
        p_values: each among the held-out images and all images before; small for high scores.
        log_e_value: after each image; compare it with ``alarm_line``.
    """

    p_values: Floats
    log_e_value: Floats


@dataclass(frozen=True)
class MonitorState:
    """What a monitor knows after its last image.

    Attributes:
        images: how many it has seen.
        log_e_value: the largest log e-value of its streams: the evidence against no change.
        alarm_line: the alarm is raised where ``log_e_value`` reaches it, and stays.
        streams: by name: ``score``, then each cue and the predicted class, if they are followed.
        flagged: the share flagged by the gate among the last 1,000 images; ``None`` without a gate
            or an image.
        flagged_low: lower end of its 95 % interval.
        flagged_high: upper end.
        batch: the images of the last update, one by one.
    """

    images: int
    log_e_value: float
    alarm_line: float
    streams: Mapping[str, StreamState]
    flagged: float | None
    flagged_low: float | None
    flagged_high: float | None
    batch: Batch

    @property
    def alarm(self) -> bool:
        """Whether some stream has moved. It says that the images changed, not that they are bad."""
        return bool(self.moved)

    @property
    def log_e_values(self) -> dict[str, float]:
        """Of each stream, by name."""
        return {name: stream.log_e_value for name, stream in self.streams.items()}

    @property
    def moved(self) -> dict[str, ChangePoint]:
        """The streams that have moved, by name, the first one first."""
        found = {
            name: s.change_point for name, s in self.streams.items() if s.change_point is not None
        }
        return dict(sorted(found.items(), key=lambda item: item[1].at))

    @property
    def alarm_at(self) -> int | None:
        """The image at which the alarm was raised, counted from 1."""
        return next((change_point.at for change_point in self.moved.values()), None)

    @property
    def since(self) -> int | None:
        """The estimated first image after the change that raised the alarm, counted from 1."""
        return next((change_point.since for change_point in self.moved.values()), None)

    def __str__(self) -> str:
        """For example ``alarm at image 4,502: layer2 has moved since about image 4,210 (higher);
        score, layer4 have not``."""
        if not self.alarm:
            return (
                f"no alarm after {self.images:,} images: log e-value {self.log_e_value:.1f}, "
                f"alarm at {self.alarm_line:.1f}"
            )
        moved = "; ".join(
            f"{name} has moved since about image {found.since:,} ({change(name, found)})"
            for name, found in self.moved.items()
        )
        still = [name for name, stream in self.streams.items() if not stream.moved]
        others = f"; {', '.join(still)} {'have' if len(still) > 1 else 'has'} not" if still else ""
        return f"alarm at image {self.alarm_at:,}: {moved}{others}"


def change(stream: str, found: ChangePoint) -> str:
    """In which way a stream has moved, for people."""
    # Classes are numbered, but none is higher than another.
    if stream == CLASS:
        return "another mix of classes"
    words = dict(_WORDS)
    if stream.startswith(PROPERTY):
        words |= _PROPERTY_WORDS.get(stream.removeprefix(PROPERTY), {})
    return words[found.direction]


_WORDS: Mapping[Direction, str] = {
    "higher": "higher values",
    "lower": "lower values",
    "shape": "another distribution",
}
_PROPERTY_WORDS: Mapping[str, Mapping[Direction, str]] = {
    "brightness": {"higher": "brighter", "lower": "darker"},
    "contrast": {"higher": "more contrast", "lower": "less contrast"},
    "sharpness": {"higher": "sharper, or noisier", "lower": "less sharp"},
    "entropy": {"higher": "more different grey values", "lower": "fewer different grey values"},
    "colour": {"higher": "more colourful", "lower": "less colourful"},
}
