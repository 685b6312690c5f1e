"""Intervals for a proportion."""

from scipy import special


def proportion_interval(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval for a proportion: covers it at least at this level.

    Args:
        count: how many have the property.
        total: of how many, at least 1.
        level: of confidence.

    Example:
        >>> low, high = proportion_interval(0, 100)
        >>> low, round(high, 4)
        (0.0, 0.0362)
    """
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(special.betaincinv(count, total - count + 1, tail))
    high = 1.0 if count == total else float(special.betaincinv(count + 1, total - count, 1 - tail))
    return low, high
