import pytest
from scipy.stats import binom, binomtest

from goen.errors import UsageError
from goen.functional.proportion import exact_proportion


@pytest.mark.parametrize(("count", "total"), [(0, 7), (3, 11), (11, 11), (1, 1), (120, 5000)])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_it_is_scipys(count: int, total: int, level: float) -> None:
    expected = binomtest(count, total).proportion_ci(level, method="exact")
    share, low, high = exact_proportion(count, total, level=level)
    assert share == count / total
    assert low == pytest.approx(expected.low, rel=1e-9, abs=1e-12)
    assert high == pytest.approx(expected.high, rel=1e-9)


def test_by_hand() -> None:
    # Without a success in n tries the upper end p has (1 - p)^n = 2.5 %.
    assert exact_proportion(0, 20).high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert exact_proportion(20, 20).low == pytest.approx(0.025 ** (1 / 20))
    # At each end, the count that was seen or a more extreme one has a probability of 2.5 %.
    _, low, high = exact_proportion(4, 30)
    assert binom.sf(3, 30, low) == pytest.approx(0.025)
    assert binom.cdf(4, 30, high) == pytest.approx(0.025)


@pytest.mark.parametrize(("count", "total"), [(-1, 3), (4, 3), (0, 0)])
def test_counts_that_cannot_be_are_refused(count: int, total: int) -> None:
    with pytest.raises(UsageError, match="lies in 0"):
        exact_proportion(count, total)


def test_a_level_lies_between_0_and_1() -> None:
    with pytest.raises(UsageError, match="level"):
        exact_proportion(1, 3, level=1)
