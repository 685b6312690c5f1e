"""Checks of single settings: one of several names, or a number within bounds."""

import math
from collections.abc import Iterable
from numbers import Integral, Real

from goen.errors import UsageError, unknown


def check_choice(setting: str, value: object, choices: Iterable[str]) -> None:
    """Check that a setting has one of its values.

    Raises:
        UsageError: another value; the message has the nearest choice, and all.

    Example:
        >>> check_choice("border", "reflect", ("black", "reflect"))
    """
    choices = tuple(choices)
    if value not in choices:
        raise unknown(setting, value, choices)


def check_number(
    setting: str,
    value: float,
    *,
    whole: bool = False,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> None:
    """Check that a setting is a finite number within its bounds.

    Raises:
        UsageError: not a number, NaN, infinite, out of bounds, or with ``whole`` not an integer.

    Example:
        >>> check_number("padding", 4, whole=True, at_least=0)
        >>> check_number("rotated", 0.25, above=0, at_most=1)
    """
    number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if (
        number
        and -math.inf < value < math.inf
        and (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (at_most is None or value <= at_most)
        and (below is None or value < below)
    ):
        return
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    limits = " and ".join(f"{words} {b}" for words, b in bounds.items() if b is not None)
    expected = filter(None, ("an integer" if whole else "a number", limits))
    raise UsageError(f"{setting} must be {', '.join(expected)}; got {value!r}.")


def check_seed(value: int) -> None:
    """Check a seed of random numbers.

    Raises:
        UsageError: not an integer from 0 to 2³² - 1.
    """
    check_number("seed", value, whole=True, at_least=0, at_most=2**32 - 1)
