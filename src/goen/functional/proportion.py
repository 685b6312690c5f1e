"""A share estimated from a count, with its interval."""

from typing import NamedTuple

from scipy import special

from goen.errors import UsageError


class Proportion(NamedTuple):
    """A share and the interval that contains the true one with at least the chosen probability."""

    share: float
    low: float
    high: float


def exact_proportion(count: int, total: int, *, level: float = 0.95) -> Proportion:
    """``count / total`` with its exact (Clopper-Pearson) interval.

    The interval contains the true share with probability ``level`` or more, for every total.

    Args:
        count: how many, 0 .. total.
        total: of how many, at least 1.
        level: 0.95 for the 2.5 % and 97.5 % ends.

    Raises:
        UsageError: a count that is not in 0 .. total, no total, or a level outside (0, 1).

    Paper: Clopper & Pearson 1934.

    Example:
        >>> [round(x, 4) for x in exact_proportion(0, 10)]
        [0.0, 0.0, 0.3085]
    """
    if not 0 <= count <= total or total < 1:
        raise UsageError(
            f"A count lies in 0 .. total, and the total is positive: {count}, {total}."
        )
    if not 0 < level < 1:
        raise UsageError(f"The level lies strictly between 0 and 1, got {level}.")
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(special.betaincinv(count, total - count + 1, tail))
    high = 1.0 if count == total else float(special.betaincinv(count + 1, total - count, 1 - tail))
    return Proportion(count / total, low, high)
