"""The rates to choose from are those that the held-out images can guarantee."""

import numpy as np
import pytest

from goen.errors import FitError
from goen.gate import HeldOut
from goen.gate.rates import Rates


@pytest.mark.parametrize("held_out", [1, 19, 20, 120, 999, 2000])
def test_the_slider_has_the_rates_that_a_gate_takes_and_no_other(held_out: int) -> None:
    scores = HeldOut(np.arange(float(held_out)))
    choices = Rates(0.5, held_out, {}).choices()
    assert choices == sorted(set(choices))
    assert choices[-1] == 0.5
    for rate in choices:
        scores.threshold(rate)  # or a FitError
    lower = [rate for rate in Rates(0.5, 10**7, {}).choices() if rate < choices[0]]
    assert lower
    with pytest.raises(FitError):
        scores.threshold(lower[-1])


def test_the_gates_own_rate_is_on_the_slider() -> None:
    assert Rates(0.0437, 2000, {}).choices().count(0.0437) == 1
    assert Rates(0.05, 2000, {}).choices().count(0.05) == 1
    assert Rates(0.7, 2000, {}).choices()[-1] == 0.7


def test_rates_are_the_numbers_that_people_write() -> None:
    # Not 3 * 0.01 = 0.03 or 1.5 * 0.1 = 0.15000000000000002: what float("0.15") gives.
    for rate in Rates(0.05, 10**7, {}).choices():
        assert len(str(rate)) <= 7
