"""What a monitor promises about false alarms, and the evidence at which it raises an alarm."""

import math
from dataclasses import dataclass

from goen.checks import check_number
from goen.errors import UsageError
from goen.functional.martingales import Starts


@dataclass(frozen=True)
class Promise:
    """One of two bounds on false alarms, for as long as the images do not change.

    Attributes:
        false_alarm: the probability that an alarm is ever raised, however long the monitor runs.
        average_run_length: the mean number of images until a false alarm, if that is bounded
            instead; there will be false alarms then.
    """

    false_alarm: float | None
    average_run_length: int | None = None

    def __post_init__(self) -> None:
        if (self.false_alarm is None) == (self.average_run_length is None):
            raise UsageError("Give either false_alarm or average_run_length.")
        if self.false_alarm is not None:
            check_number("false_alarm", self.false_alarm, at_least=1e-12, below=1)
            object.__setattr__(self, "false_alarm", float(self.false_alarm))
        if self.average_run_length is not None:
            length = self.average_run_length
            check_number("average_run_length", length, whole=True, at_least=10, at_most=10**12)
            object.__setattr__(self, "average_run_length", int(length))

    @property
    def starts(self) -> Starts:
        """How the evidence is built up: see ``goen.functional.martingales``."""
        return "once" if self.average_run_length is None else "anew"

    @property
    def alarm_line(self) -> float:
        """The log evidence at which an alarm is raised.

        With c streams of weights that sum to 1, each alarmed where its evidence times its weight
        reaches exp(alarm_line): the probability of ever reaching it is at most 1 / exp(alarm_line)
        (Ville's inequality and the union bound). With an average run length N, the probability to
        reach 2 N within n images is at most n / (2 N) for all streams together, so the mean
        number of images until one does is at least N.
        """
        if self.average_run_length is None:
            return -math.log(self.false_alarm or 1.0)
        return math.log(2 * self.average_run_length)

    def __str__(self) -> str:
        if self.average_run_length is None:
            return (
                "As long as the images do not change, the probability that this monitor ever "
                f"raises an alarm is at most {self.false_alarm:.3g}."
            )
        return (
            "This monitor bounds the mean time between false alarms, not their probability: as "
            f"long as the images do not change, an alarm comes on average after "
            f"{self.average_run_length:,} images or more."
        )
