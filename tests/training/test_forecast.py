import logging
from collections.abc import Iterator

import pytest

from goen.training.forecast import Forecast, readable


def ticking(*seconds: float) -> Iterator[float]:
    """A clock whose reading rises by these."""
    now = 0.0
    for each in seconds:
        now += each
        yield now


def test_the_first_step_is_not_measured_and_later_epochs_cost_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # 100 s for the first step, then 2, 1, 3, 2 and 2 s: 2 s a step.
    clock = ticking(100.0, 10.0)
    forecast = Forecast([9.0, 9.0, 16.0], 88, clock=lambda: next(clock))
    with caplog.at_level(logging.INFO, "goen"):
        for _ in range(50):
            forecast.step()
    # 2 epochs of 88 steps of 2 s, and one of 88 steps of 2 · 16 / 9 s.
    assert forecast.seconds == pytest.approx(2 * 88 * 2 + 88 * 2 * 16 / 9)
    (record,) = caplog.records
    assert record.getMessage().startswith("training: about 11 min for 3 epochs")


def test_epochs_of_a_few_steps_are_over_before_anything_is_known() -> None:
    forecast = Forecast([1.0, 1.0], 5)
    for _ in range(10):
        forecast.step()
    assert forecast.seconds is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (7000, "117 min"), (7200, "2 h 0 min")],
)
def test_readable(seconds: float, text: str) -> None:
    assert readable(seconds) == text
