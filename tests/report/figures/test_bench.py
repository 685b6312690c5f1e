"""Figures that compare methods: what is drawn, and where."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch

from goen.io.results import Origin, Result
from goen.report.figures.bench import (
    Scored,
    _shown_range,
    forest,
    roc_by_kind,
    score_rows,
    seed_points,
)
from goen.report.figures.scores import roc
from goen.report.figures.style import BLUE, COLOURS, ORANGE, PALE

KINDS = ("first", "second")


def estimate(
    label: str,
    kind: int,
    value: float,
    low: float | None = None,
    high: float | None = None,
    *,
    seen: bool = False,
) -> tuple[str, int, Result]:
    """A method and its AUROC on a set."""
    [auroc] = Origin(label, "full", 0, "net", ()).rows("a set", "near", {"auroc": value}, seen=seen)
    return label, kind, replace(auroc, low=low, high=high)


def lines(figure: Figure) -> list[Line2D]:
    return list(figure.axes[0].get_lines())


def test_every_figure_has_one_range_and_a_dashed_line_at_a_half() -> None:
    for values in ((0.98, 0.99), (0.45, 0.9), (0.02, 0.7)):
        estimates = [estimate(f"m{i}", i, v, v - 0.01, v + 0.005) for i, v in enumerate(values)]
        figure = forest("a set", estimates, KINDS)
        assert figure.axes[0].get_xlim() == (0.4, 1.01)
        dashed = [line for line in lines(figure) if line.get_linestyle() == "--"]
        assert [list(line.get_xdata()) for line in dashed] == [[0.5, 0.5]]


def test_a_value_below_the_range_is_written_at_its_edge() -> None:
    figure = forest("a set", [estimate("low", 0, 0.0213, 0.01, 0.03)], KINDS)
    [arrow] = [line for line in lines(figure) if line.get_marker() == "<"]
    assert list(arrow.get_xdata()) == [0.4]
    assert "0.02" in [text.get_text() for text in figure.axes[0].texts]


def test_colour_and_marker_are_those_of_the_section_and_seen_is_hollow() -> None:
    estimates = [estimate("a", 0, 0.8), estimate("b", 1, 0.8), estimate("c", 1, 0.8, seen=True)]
    figure = forest("a set", estimates, KINDS)
    points = [line for line in lines(figure) if line.get_marker() not in ("None", "")]
    assert [to_hex(p.get_color()) for p in points] == [
        c.lower() for c in COLOURS[:1] + 2 * COLOURS[1:2]
    ]
    assert [p.get_marker() for p in points] == ["o", "s", "s"]
    faces = [to_hex(p.get_markerfacecolor()) for p in points]
    assert faces == [COLOURS[0].lower(), COLOURS[1].lower(), "#ffffff"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(KINDS)


def test_id_and_ood_have_colours_that_no_series_has() -> None:
    assert not {BLUE, ORANGE} & set(COLOURS)


def scored(legend: str = "") -> Scored:
    rng = np.random.default_rng(0)
    return Scored("a method", 1, rng.normal(0, 1, 300), rng.normal(4, 1, 200), legend)


def test_a_roc_curve_is_that_of_the_scores() -> None:
    method = scored("a method: AUROC")
    grey = Scored("grey", 0, method.ood, method.id)
    chance, *curves = lines(roc_by_kind("a set", [method, grey]))
    assert (chance.get_linestyle(), list(chance.get_xdata())) == ("--", [0, 1])
    for drawn, own in zip(curves, (method, grey), strict=True):
        alarms, found = roc(own.id, own.ood)
        assert np.array_equal(drawn.get_xdata(), alarms)
        assert np.array_equal(drawn.get_ydata(), found)
    assert [to_hex(curve.get_color()) for curve in curves] == [COLOURS[1].lower(), PALE]


def test_a_long_legend_stays_within_the_figure() -> None:
    long = "concatenation as in the figure, with CenterLoss, its distance WWWW: AUROC 0.9876, AUPR"
    figure = roc_by_kind("a set", [scored(long)])
    (text,) = figure.legends[0].get_texts()
    assert text.get_text().replace("\n", " ") == long
    assert text.get_window_extent().x1 < figure.bbox.x1


def test_scores_of_ood_are_above_the_line_and_of_id_below() -> None:
    figure = score_rows("a set", [scored(), scored()])
    steps = [p for p in figure.axes[0].patches if isinstance(p, StepPatch)]
    assert [to_hex(p.get_facecolor()) for p in steps] == 2 * [ORANGE.lower(), BLUE.lower()]
    assert figure.axes[0].yaxis_inverted()
    for place, (ood, id_) in enumerate((steps[:2], steps[2:])):
        above, edges, baseline = ood.get_data()
        assert baseline == place
        assert above.min() == pytest.approx(place - 0.45)  # the axis points down
        assert above.max() <= place
        below, _, _ = id_.get_data()
        assert below.max() == pytest.approx(place + 0.45)
        # Higher scores are further to the right, and OOD scores are the higher ones.
        centre = (edges[1:] + edges[:-1]) / 2
        assert np.average(centre, weights=place - above) > 0.6
        assert np.average(centre, weights=below - place) < 0.4


def test_a_long_tail_does_not_press_the_rest_together() -> None:
    method = scored()
    tail = Scored("tail", 0, method.id, np.r_[method.ood, [1e6, 2e6, 3e6]])
    figure = score_rows("a set", [method, tail])
    steps = [p for p in figure.axes[0].patches if isinstance(p, StepPatch)]
    used = [np.count_nonzero(p.get_data().values - p.get_data().baseline) for p in steps]
    assert min(used) > 15  # of 60 bins; a range with the tail in it would leave one or two


def test_equal_scores_are_drawn() -> None:
    same = Scored("same", 0, np.ones(5), np.ones(3))
    figure = score_rows("a set", [same])
    steps = [p for p in figure.axes[0].patches if isinstance(p, StepPatch)]
    assert len(steps) == 2
    assert all(np.isfinite(p.get_data().values).all() for p in steps)


def test_scores_that_are_nearly_all_equal_have_a_range_of_some_width() -> None:
    equal = np.zeros(1000)
    assert _shown_range(Scored("one", 0, equal, equal)) == (0.0, 1.0)


@pytest.mark.parametrize("values", [(0.983, 0.9927), (0.0301, 0.0433), (1.0, 1.0), (0.3288, 0.88)])
def test_the_numbers_of_the_axis_do_not_touch(values: tuple[float, float]) -> None:
    figure = seed_points("AUROC: noise", "AUROC", {"a row with a long name": values})
    renderer = FigureCanvasAgg(figure).get_renderer()
    [ax] = figure.axes
    low, high = ax.get_xlim()
    texts = [label for label in ax.get_xticklabels() if low <= label.get_position()[0] <= high]
    boxes = [text.get_window_extent(renderer) for text in texts]
    assert len(boxes) >= 2
    for left, right in pairwise(boxes):
        assert right.x0 - left.x1 > 0.3 * left.height
