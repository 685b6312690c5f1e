"""How long a training will take, measured on its first steps."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import getLogger

_log = getLogger(__name__)

# The first step allocates memory and chooses algorithms.
_WARM_UP = 1
_MEASURED = 5


@dataclass
class Forecast:
    """Logs the time a training will take, once, after its first steps.

    Attributes:
        costs: of a step in each epoch that is left, in any unit; the first is that of the steps
            that are measured. A convolutional network's is the number of pixels.
        steps_per_epoch: of each.
        clock: seconds since any moment.
        seconds: the forecast, once it is known.

    Example:
        >>> times = iter([2.0, 7.0])
        >>> forecast = Forecast([1.0, 4.0], 60, clock=lambda: next(times))
        >>> for _ in range(6):
        ...     forecast.step()
        >>> forecast.seconds
        300.0
    """

    costs: Sequence[float]
    steps_per_epoch: int
    clock: Callable[[], float] = time.perf_counter
    seconds: float | None = None
    _steps: int = 0
    _started: float = 0.0

    def step(self) -> None:
        """To be called after each step."""
        if self.seconds is not None or self.steps_per_epoch < _WARM_UP + _MEASURED:
            return
        self._steps += 1
        if self._steps == _WARM_UP:
            self._started = self.clock()
        elif self._steps == _WARM_UP + _MEASURED:
            each = (self.clock() - self._started) / _MEASURED
            total = sum(self.costs) / self.costs[0] * self.steps_per_epoch
            self.seconds = each * total
            _log.info(
                f"training: about {readable(self.seconds)} for {len(self.costs)} epochs, by the "
                f"first {_MEASURED} steps; validation adds a little"
            )


def readable(seconds: float) -> str:
    """For people.

    Example:
        >>> readable(12.3), readable(300), readable(9000)
        ('12 s', '5 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
