import csv
import io
import json

import pytest

from goen.escaping import csv_cell, drawable, json_line, visible

OBEYED = ["\x00", "\x07", "\x08", "\x0b", "\r", "\x1b", "\x1f", "\x7f", "\x80", "\x85", "\x9b"]
OBEYED += ["\x9f", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069"]
OBEYED += ["\ud800", "\udcff", "\udfff"]


@pytest.mark.parametrize("character", OBEYED)
def test_what_a_terminal_obeys_is_written_out(character: str) -> None:
    code = ord(character)
    expected = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    assert visible(f"a{character}b") == f"a{expected}b"
    assert drawable(f"a{character}b").isprintable()


def test_text_is_left_alone() -> None:
    text = "a\nb\tgrün 日本 \U0001f408\u200d\u2b1b e\u0301 $x$ <b> \\x1b"
    assert visible(text) == text


def test_a_figure_gets_one_line_of_glyphs() -> None:
    assert drawable("a\n\tb\ufeffc\u200dd\xade") == "a  b\\ufeffc\\u200dd\\xade"


@pytest.mark.parametrize("character", [*OBEYED, '"', "\\", "\n", "é"])
def test_json_comes_back_as_it_was_and_is_one_line(character: str) -> None:
    row = {"path": f"a{character}b", "score": 1.5, "is_ood": True, "error": None}
    line = json_line(row)
    assert json.loads(line) == row
    assert len(line.splitlines()) == 1
    assert visible(line) == line
    line.encode("utf-8")


@pytest.mark.parametrize(
    "text",
    [
        "=1",
        "+1",
        "-1",
        "@a",
        "\ta",
        "\ra",
        "\n=1",
        "\uff1d1",
        "\uff20a",
        "'a",
        "''",
        "a",
        "",
        "a=1",
    ],
)
def test_a_csv_cell_is_no_formula_and_comes_back(text: str) -> None:
    cell = csv_cell(text)
    assert not cell.startswith((*"=+-@\t\r\n", *"\uff1d\uff0b\uff0d\uff20"))
    file = io.StringIO()
    csv.writer(file).writerow([cell])
    file.seek(0)
    assert next(csv.reader(file, strict=True))[0].removeprefix("'") == text


def test_numbers_are_not_text() -> None:
    assert csv_cell(-1.5) == -1.5
    assert csv_cell(None) is None
