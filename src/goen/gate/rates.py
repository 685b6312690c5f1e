"""The false-alarm rates that a reader of a page, or a user of the service, can choose from."""

from collections.abc import Mapping
from dataclasses import dataclass

from goen.functional.conformal import required_held_out
from goen.io.manifest import JsonObject

# Rates as people write them; which of them a slider has depends on the held-out images.
_DIGITS = ("1", "1.5", "2", "3", "4", "5", "6", "7", "8", "9")
_RATES = (
    *(float(f"{digits}e-{place}") for place in (6, 5, 4, 3, 2) for digits in _DIGITS),
    *(0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
)


@dataclass(frozen=True)
class Rates:
    """False-alarm rates to choose from.

    Attributes:
        chosen: the gate's own.
        num_held_out: the held-out images behind a p-value, the fewest of any class.
        counts: how many images have each p-value, those that are not shown included.
    """

    chosen: float
    num_held_out: int
    counts: Mapping[float, int]

    def choices(self) -> list[float]:
        """The positions of the slider: rates that so many held-out images can guarantee.

        Example:
            >>> Rates(0.07, 19, {}).choices()[:5]
            [0.05, 0.06, 0.07, 0.08, 0.09]
        """
        possible = [rate for rate in _RATES if required_held_out(rate) <= self.num_held_out]
        return sorted({*possible, self.chosen})

    def to_json(self) -> JsonObject:
        """For the script; numbers are exact."""
        return {
            "chosen": self.chosen,
            "choices": list(self.choices()),
            "held_out": self.num_held_out,
            "counts": [[p, count] for p, count in sorted(self.counts.items())],
        }
