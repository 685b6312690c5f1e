"""What all figures share: colours that follow the reader's scheme."""

import ast
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from goen.escaping import drawable
from goen.report.figures import style
from goen.report.figures.geometry import measure_by_epoch
from goen.report.figures.run import feature_map
from goen.report.figures.scores import roc_curves
from goen.report.figures.style import (
    FAINT,
    GREY,
    INK,
    PALE,
    canvas,
    drawn,
    follow_colour_scheme,
    goen_style,
    label_rows,
    line_style,
    log_axis,
    marker,
)
from goen.report.figures.watch import e_value_lines

FIGURES = Path(style.__file__).parent


@goen_style
def figure() -> Figure:
    figure = canvas(2.0)
    ax = figure.subplots()
    ax.plot([0, 1], color=GREY)
    ax.text(0, 0, "on a colour", color="white")
    ax.set(xlabel="x")
    return figure


@pytest.fixture
def svg() -> str:
    return drawn(figure(), "svg")["svg"].decode()


def test_neighbouring_lines_and_the_first_28_differ() -> None:
    styles = [tuple(line_style(number).values()) for number in range(28)]
    assert len({*styles}) == 28
    for one, next_one in pairwise(styles):
        assert one[0] != next_one[0]
        assert one[1] != next_one[1]
    assert len({marker(number) for number in range(6)}) == 6


def test_neutral_colours_have_a_dark_twin_and_white_text_stays_white(svg: str) -> None:
    shown = follow_colour_scheme(svg.encode()).decode()
    ElementTree.fromstring(shown)  # well-formed
    [style] = [part for part in shown.split("<style>") if part.startswith("@media")]
    rules = style.partition("</style>")[0]
    assert rules.startswith("@media (prefers-color-scheme: dark)")
    for colour in ("#ffffff", INK, GREY, FAINT, PALE):
        for part in ("fill", "stroke"):
            assert f'[style*="{part}: {colour}"]' in rules
    assert ':not(text)[style*="fill: #ffffff"]' in rules
    assert shown.replace(f"<style>{rules}</style>", "") == svg


def test_text_and_ticks_are_in_the_ink_that_has_a_dark_twin(svg: str) -> None:
    texts = [line for line in svg.splitlines() if "<text" in line and "on a colour" not in line]
    assert texts
    assert all(f"fill: {INK}" in line for line in texts)


@pytest.mark.parametrize("name", ["$x_{", "a\ufeffb", "\x1b[31m", "\u202egnp", "a\ud800", "<b>&"])
def test_names_are_drawn_in_every_format(name: str) -> None:
    @goen_style
    def named() -> Figure:
        figure = canvas(2.0)
        ax = figure.subplots()
        ax.plot([0, 1], label=name)
        ax.set_title(f"first {name}\nsecond")
        ax.legend()
        label_rows(ax, [name, "another"])
        return figure

    content = drawn(named())
    svg = content["svg"].decode()
    texts = [text.text or "" for text in ElementTree.fromstring(svg).iter() if text.text]
    assert drawable(name) in texts
    assert f"first {drawable(name)}" in texts
    assert "second" in texts
    assert content["png"].startswith(b"\x89PNG")
    assert content["pdf"].startswith(b"%PDF")


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_logarithmic_axis_has_plain_numbers(name: Literal["x", "y"]) -> None:
    @goen_style
    def logarithmic() -> Figure:
        figure = canvas(2.0)
        ax = figure.subplots()
        ax.plot([0.04, 900], [0.04, 900])
        log_axis(ax, name)
        return figure

    svg = drawn(logarithmic(), "svg")["svg"].decode()
    assert "$" not in svg
    assert all(f">{tick}</text>" in svg for tick in ("0.1", "1", "10", "100"))
    [ax] = logarithmic().axes
    assert ax.get_xscale() == ("log" if name == "x" else "linear")
    assert ax.get_yscale() == ("log" if name == "y" else "linear")


# -- names that begin with _ ---------------------------------------------------------------------


def labels_of_series(source: str) -> list[str]:
    """What is given as ``label=`` in calls, other than plain texts."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    words = (word for call in calls for word in call.keywords if word.arg == "label")
    return [ast.unparse(w.value) for w in words if not isinstance(w.value, ast.Constant)]


@pytest.mark.parametrize("path", sorted(FIGURES.glob("*.py")), ids=lambda path: path.name)
def test_every_name_in_a_legend_may_begin_with_an_underscore(path: Path) -> None:
    for label in labels_of_series(path.read_text("utf-8")):
        assert label.startswith("in_legend(") or label == "label", f"{path.name}: label={label}"
    assert labels_of_series("ax.plot(x, label=name, c='k')\nax.plot(label='all')") == ["name"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda names: e_value_lines(
            {name: np.array([0.0, 1.0]) for name in names}, 4.6, None, None
        ),
        lambda names: feature_map(
            {name: np.zeros((2, 2)) for name in names}, np.zeros((0, 2)), (), np.array([0.5, 0.2])
        ),
        lambda names: measure_by_epoch("x", {name: [(1, 0.5), (2, 0.6)] for name in names}),
        lambda names: roc_curves(
            "x",
            {name: name for name in names},
            {name: np.array([0.0, 1.0]) for name in names},
            {name: np.array([0.5, 2.0]) for name in names},
            (0.1, 0.5),
        ),
    ],
)
def test_such_names_are_drawn(draw: Callable[[list[str]], Figure]) -> None:
    figure = draw(["_mine", "other"])
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[:2] == ["_mine", "other"]  # the mark before it is gone
