import re

import pytest
import torch
from markupsafe import Markup
from torch import nn

import goen
from goen.notebook import html_table, p_value_bar, picture, text, wide


def test_texts_are_escaped_in_every_place() -> None:
    bad = "<b onclick='x'>\x00"
    html = html_table(bad, [bad, "n"], [[bad, wide(bad)]], note=bad, right=["n"])
    assert "<b" not in html
    assert "\x00" not in html
    assert html.count("&lt;b onclick=") == 5
    assert "text-align:right" in html
    assert "<b" not in picture('"><b>')


def test_markup_stays_as_it_is() -> None:
    assert "<i>a</i>" in html_table("t", ["c"], [[Markup("<i>a</i>")]])


def test_columns_without_names_have_no_head() -> None:
    assert "<th " not in html_table("t", ["", ""], [["a", "b"]])
    assert html_table("t", ["a"], [["b"]]).count("<th ") == 1


def test_a_text_is_one_line() -> None:
    assert text("a\n b\t\u2028c") == "a b c"


def test_long_texts_are_cut_in_the_middle() -> None:
    assert text("y" * 40) == "y" * 40
    assert text("y" * 41) == "y" * 19 + "…" + "y" * 19
    for number in (500, 501):
        long, shown = "y" * number, "y" * 500 if number == 500 else "y" * 249 + "…" + "y" * 249
        for html in (wide(long), html_table(long, [], []), html_table("", [], [], note=long)):
            assert f">{shown}<" in html


@pytest.mark.parametrize(
    ("p_value", "least", "pixels"),
    [
        (1.0, 0.01, 0),
        (0.1, 0.01, 32),
        (0.01, 0.01, 64),
        (1e-30, 0.01, 64),
        (0.0, 0.01, 64),
        (0.1, None, 16),
        (0.1, 0.0, 16),
        (0.1, 1.0, 16),
        (1e-4, None, 64),
        (1e-150, 1e-300, 32),
        (0.0, 1e-300, 64),
    ],
)
def test_a_bar_is_logarithmic_and_full_at_the_least_p_value(
    p_value: float, least: float | None, pixels: int
) -> None:
    bar = p_value_bar(p_value, least)
    assert [int(n) for n in re.findall(r"width:(\d+)px", bar)] == [64, pixels]
    assert ("#4c8dd6" in bar, "#4c8dd6" in p_value_bar(p_value, least, flagged=True)) == (
        True,
        False,
    )


def test_a_picture_is_a_square_of_48_pixels_unless_said_otherwise() -> None:
    assert "width:48px;height:48px" in picture("data:")
    assert "width:9px;height:9px" in picture("data:", 9)


def test_no_colour_of_text_or_ground_depends_on_a_theme() -> None:
    """What a notebook inherits is readable in light and dark; a white ground would not be."""
    table = html_table("t", ["a"], [["b"]])
    assert set(re.findall(r"background:([^;\"]+)", table)) == {"transparent"}
    assert not re.findall(r"[;\"]color:", table)


def test_outputs_and_layers_are_tables() -> None:
    outputs = goen.Outputs(
        torch.tensor([[-1.0, 2.5]]), {"<i>": torch.zeros(1, 3)}, torch.tensor([0.5])
    )
    html = outputs._repr_html_()
    for part in ("Outputs of 1 inputs", "&lt;i&gt;", "(1, 3)", "float32", "2.5", "uncertainty"):
        assert part in html
    assert "lowest" in outputs[:0]._repr_html_()  # there is no lowest value
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    table = goen.list_layers(model, (3, 8, 8))._repr_html_()
    assert "2 layers" in table
    assert "(N, 8, 6, 6)" in table
    assert "cannot be seen" not in table
