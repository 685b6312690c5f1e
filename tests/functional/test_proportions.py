"""Clopper and Pearson's interval, against SciPy and by hand."""

import pytest
from scipy.stats import binomtest

from goen.functional.proportions import proportion_interval


@pytest.mark.parametrize(("count", "total"), [(0, 7), (7, 7), (3, 50), (1, 1), (40, 1000)])
def test_it_matches_scipy(count: int, total: int) -> None:
    expected = binomtest(count, total).proportion_ci(0.95, method="exact")
    assert proportion_interval(count, total) == pytest.approx((expected.low, expected.high))


def test_none_of_n_by_hand() -> None:
    assert proportion_interval(0, 10)[1] == pytest.approx(1 - 0.025 ** (1 / 10))
