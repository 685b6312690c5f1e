import math

import numpy as np
import pytest

from goen.errors import UsageError
from goen.monitor.guarantee import Guarantee


def test_the_alarm_lines_by_hand() -> None:
    assert Guarantee(0.01).alarm_line == pytest.approx(math.log(100))
    assert Guarantee(None, 5000).alarm_line == pytest.approx(math.log(10_000))
    assert (Guarantee(0.01).starts, Guarantee(None, 5000).starts) == ("once", "restart")


def test_each_mode_says_what_it_promises() -> None:
    assert "ever raises an alarm is at most 0.05" in str(Guarantee(0.05))
    text = str(Guarantee(None, 1_000_000))
    assert "not their probability" in text
    assert "1,000,000 images or more" in text


@pytest.mark.parametrize(
    ("alarm_probability", "length"),
    [(None, None), (0.1, 100), (0.0, None), (1.0, None), (-1, None), (math.nan, None), (None, 9),
     (None, 10**13), (None, True), (None, 100.5), (None, math.nan), ("0.01", None)],
)  # fmt: skip
def test_impossible_guarantees_are_refused(
    alarm_probability: float | None, length: int | None
) -> None:
    with pytest.raises(UsageError, match=r"alarm_probability|average_run_length"):
        Guarantee(alarm_probability, length)


def test_numbers_of_numpy_are_those_of_python() -> None:
    """A monitor is saved as JSON, which knows no others."""
    assert type(Guarantee(np.float32(0.25)).alarm_probability) is float
    assert type(Guarantee(None, np.int64(100)).average_run_length) is int
