import re

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
    assert len(text("y" * 1000)) == 39


def test_a_bar_stays_within_its_frame() -> None:
    for p in (1.0, 0.2, 1e-30, 0.0):
        widths = [int(n) for n in re.findall(r"width:(\d+)px", p_value_bar(p, 0.01))]
        assert widths[0] == 64
        assert 0 <= widths[1] <= 64


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
