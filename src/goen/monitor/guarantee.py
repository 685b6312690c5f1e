"""What a monitor guarantees about false alarms, and the e-value at which it raises an alarm."""

import math
from dataclasses import dataclass

from goen.checks import check_number
from goen.errors import UsageError
from goen.functional.martingales import Starts


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
