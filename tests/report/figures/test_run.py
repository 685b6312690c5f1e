"""Figures of ``goen run``."""

import pytest

from goen.report.figures.run import training_curve
from goen.report.figures.style import drawn


@pytest.mark.parametrize(("highest", "scale"), [(1.9, "linear"), (30.0, "log")])
def test_a_loss_that_falls_far_has_a_logarithmic_axis_with_plain_numbers(
    highest: float, scale: str
) -> None:
    figure = training_curve("Loss", [1, 2, 3], [2.0, 0.8, 0.5], [highest, 0.5, 0.1])
    assert figure.axes[0].get_yscale() == scale
    svg = drawn(figure, "svg")["svg"].decode()
    assert "$" not in svg
    if scale == "log":
        assert all(f">{tick}</text>" in svg for tick in ("0.1", "1", "10"))
