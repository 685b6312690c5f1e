"""What all figures share: colours that follow the reader's scheme."""

from itertools import pairwise
from typing import Literal
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from goen.escaping import drawable
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
