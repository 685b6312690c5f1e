import math

import numpy as np
import pytest

from goen.errors import UsageError
from goen.monitor.promise import Promise


def test_the_alarm_lines_by_hand() -> None:
    assert Promise(0.01).alarm_line == pytest.approx(math.log(100))
    assert Promise(None, 5000).alarm_line == pytest.approx(math.log(10_000))
    assert (Promise(0.01).starts, Promise(None, 5000).starts) == ("once", "anew")


def test_each_mode_says_what_it_promises() -> None:
    assert "ever raises an alarm is at most 0.05" in str(Promise(0.05))
    text = str(Promise(None, 1_000_000))
    assert "not their probability" in text
    assert "1,000,000 images or more" in text


@pytest.mark.parametrize(
    ("false_alarm", "length"),
    [(None, None), (0.1, 100), (0.0, None), (1.0, None), (-1, None), (math.nan, None), (None, 9),
     (None, 10**13), (None, True), (None, 100.5), (None, math.nan), ("0.01", None)],
)  # fmt: skip
def test_impossible_promises_are_refused(false_alarm: float | None, length: int | None) -> None:
    with pytest.raises(UsageError, match=r"false_alarm|average_run_length"):
        Promise(false_alarm, length)


def test_numbers_of_numpy_are_those_of_python() -> None:
    """A monitor is saved as JSON, which knows no others."""
    assert type(Promise(np.float32(0.25)).false_alarm) is float
    assert type(Promise(None, np.int64(100)).average_run_length) is int
