"""Names from outside (of files, classes, sets) where a program would take them for more than text.

A terminal obeys control characters, a spreadsheet computes formulas, readers of lines break at
characters that end a line, and characters that turn the direction of writing rearrange what is
around them.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

_Value = TypeVar("_Value")

# The ends of lines and tabs stay. Half surrogates stand for bytes of a file's name that are no
# text; UTF-8 has no form for them.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# With these a formula begins; in Japanese spreadsheets also with the wide forms of four of them.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def visible(text: str) -> str:
    r"""The text with control characters written out, safe to print on a terminal.

    Example:
        >>> print(visible("cat\x1b[31m\u202egnp"))
        cat\x1b[31m\u202egnp
    """
    return _CONTROL.sub(lambda found: _written(found[0]), text)


def drawable(text: str) -> str:
    r"""The text with everything written out that a font has no glyph for, in one line, for figures.

    Example:
        >>> print(drawable("a\ufeffb\nc"))
        a\ufeffb c
    """
    plain = re.sub(r"\s", " ", text)
    return "".join(c if c.isprintable() else _written(c) for c in plain)


def _written(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def json_line(row: Mapping[str, str | float | bool | None], *, ascii_only: bool = False) -> str:
    r"""The row as JSON in one line, safe to print on a terminal, with the end of the line.

    What JSON leaves as it is and ``visible`` would write out is escaped as JSON has it, so that
    whoever reads it gets the name as it was. ``ascii_only`` is for streams that hold no Unicode.

    Example:
        >>> print(json_line({"path": "a\x9b\u2028"}), end="")
        {"path": "a\u009b\u2028"}
    """
    text = json.dumps(row, ensure_ascii=ascii_only)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def csv_line(cells: Iterable[object]) -> str:
    r"""The cells as a line of CSV, with the end of the line; texts as ``csv_cell`` has them.

    Example:
        >>> csv_line(["=1+1", "a,b", 0.5])
        '\'=1+1,"a,b",0.5\n'
    """
    line = [csv_cell(cell) for cell in cells]
    # A carriage return ends a line for many readers, and the writer alone would not quote it.
    split = any(isinstance(cell, str) and "\r" in cell for cell in line)
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if split else csv.QUOTE_MINIMAL
    csv.writer(text, lineterminator="\n", quoting=quoting).writerow(line)  # type: ignore[arg-type]
    return text.getvalue()


def csv_cell(value: _Value) -> _Value | str:
    """A cell of a CSV file: a text that a spreadsheet would take for a formula gets a ``'`` first.

    So does one that begins with ``'``: whoever reads the file takes one away.

    Example:
        >>> csv_cell("=1+1"), csv_cell("'a"), csv_cell("a"), csv_cell(-1.0)
        ("'=1+1", "''a", 'a', -1.0)
    """
    formula = isinstance(value, str) and value.startswith(_FORMULAS)
    return f"'{value}" if formula else value
