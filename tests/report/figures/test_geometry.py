import math

import pytest

from goen.report.figures.geometry import measure_bars, measure_by_epoch


def test_bars_have_the_length_of_their_values_and_what_has_none_is_named() -> None:
    measured = {"a": {"z": 2.0, "y": math.inf}, "b": {"z": 1.0}}
    figure = measure_bars("rank", measured)
    (ax,) = figure.axes
    assert [bar.get_width() for bar in ax.patches] == [2.0, 1.0, 0.0, 0.0]
    assert [text.get_text() for text in ax.texts] == [" 2", " 1", " infinite", " n/a"]
    centres = [bar.get_y() + bar.get_height() / 2 for bar in ax.patches]
    assert centres == pytest.approx([-0.2, 0.8, 0.2, 1.2])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["z", "y"]


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [(1.0, 50.0, "linear"), (1.0, 51.0, "log"), (0.0, 51.0, "linear"), (-1.0, 90.0, "linear")],
)
def test_values_far_apart_have_a_logarithmic_axis(low: float, high: float, scale: str) -> None:
    figure = measure_bars("rank", {"a": {"z": low}, "b": {"z": high}})
    assert figure.axes[0].get_xscale() == scale
    assert not figure.legends


def test_several_lines_have_a_legend() -> None:
    line = [(1, 0.5), (2, 0.75)]
    figure = measure_by_epoch("rank", {"a": line, "b": line})
    assert len(figure.legends) == 1
    assert not measure_by_epoch("rank", {"a": line}).legends
    first = figure.axes[0].lines[0]
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([1, 2], [0.5, 0.75])
