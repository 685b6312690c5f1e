"""Tables for notebooks: small, self-contained HTML in which every text is escaped.

Styles stand in the elements, as a notebook shows no style sheets of outputs it does not trust. No
colour of text or background is set, so that a table looks as the notebook does, light or dark; the
colours of bars are readable on both.
"""

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from goen.escaping import visible

Cell = str | Markup
MOST_ROWS = 20

_FLAGGED, _USUAL = "#e8590c", "#4c8dd6"
_LONGEST = 40
_BAR_PIXELS = 64
# Where the least possible p-value is not known.
_LEAST_P_VALUE = 1e-4
_LINE = "1px solid rgba(128,128,128,0.35)"
_TABLE = "border-collapse:collapse;font-size:13px;margin:4px 0;border:none"
_CELL = "padding:3px 10px 3px 0;border:none;vertical-align:middle;white-space:nowrap;text-align:"


def html_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    note: str = "",
    right: Sequence[str] = (),
) -> str:
    """A table as HTML.

    Args:
        title: above it.
        columns: names of the columns.
        rows: cells, as many as columns; texts are escaped, ``Markup`` is not.
        note: a sentence below it.
        right: columns of numbers, which are aligned to the right.

    Example:
        >>> "<script>" in html_table("a", ["b"], [["<script>"]])
        False
    """
    sides = ["right" if column in right else "left" for column in columns]

    def line(tag: str, cells: Sequence[Cell], border: str = "") -> Markup:
        made = (
            Markup('<{0} style="{1}{2}">{3}</{0}>').format(
                Markup(tag), Markup(_CELL), Markup(side), _cell(cell)
            )
            for side, cell in zip(sides, cells, strict=True)
        )
        style = Markup(f"border:none;{border}background:transparent")
        return Markup('<tr style="{}">{}</tr>').format(style, Markup("").join(made))

    named = any(columns)
    head = line("th", columns, f"border-bottom:{_LINE};") if named else Markup("")
    body = Markup("").join(line("td", row) for row in rows)
    below = Markup('<div style="opacity:0.75;font-size:12px">{}</div>').format(text(note, 500))
    return str(
        Markup(
            '<div style="overflow-x:auto"><div style="font-weight:600">{}</div>'
            '<table style="{}"><thead>{}</thead><tbody>{}</tbody></table>{}</div>'
        ).format(text(title, 500), Markup(_TABLE), head, body, below if note else "")
    )


def _cell(cell: Cell) -> Markup:
    return cell if isinstance(cell, Markup) else Markup("{}").format(text(cell))


def wide(value: str) -> Markup:
    """A cell whose text may be long, broken into several lines."""
    style = Markup("display:inline-block;max-width:560px;white-space:normal")
    return Markup('<span style="{}">{}</span>').format(style, text(value, 500))


def text(value: str, longest: int = _LONGEST) -> str:
    """The text in one line, with control characters written out; the middle of a long one is cut.

    Example:
        >>> text("a" * 10 + "b" * 10, longest=9)
        'aaaa…bbbb'
    """
    shown = visible(" ".join(value.split()))
    if len(shown) <= longest:
        return shown
    half = (longest - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"


def p_value_bar(p_value: float, least: float | None = None, *, flagged: bool = False) -> Markup:
    """A p-value with a bar: the longer, the more unusual; full at the least possible p-value.

    Args:
        p_value: in (0, 1]; its length is logarithmic.
        least: the least possible one.
        flagged: its colour.
    """
    full = -math.log10(least if least and 0 < least < 1 else _LEAST_P_VALUE)
    share = min(1.0, max(0.0, -math.log10(max(p_value, 1e-300)) / full))
    colour = Markup(_FLAGGED if flagged else _USUAL)
    return Markup(
        '<span style="display:inline-block;width:{}px;height:9px;margin-right:6px;'
        'border-radius:2px;background:rgba(128,128,128,0.22)">'
        '<span style="display:block;width:{}px;height:9px;'
        'border-radius:2px;background:{}"></span></span>{}'
    ).format(_BAR_PIXELS, round(share * _BAR_PIXELS), colour, f"{p_value:.2g}")


def flag(flagged: bool) -> Markup:
    """The decision, as a word."""
    if not flagged:
        return Markup('<span style="opacity:0.7">ID</span>')
    return Markup('<span style="color:{};font-weight:600">OOD</span>').format(Markup(_FLAGGED))


def picture(url: str, side: int = 48) -> Markup:
    """A picture of a ``data:`` URL, neither side above ``side`` pixels, small ones enlarged."""
    return Markup(
        '<img src="{}" alt="" style="width:{}px;height:{}px;object-fit:contain;'
        'image-rendering:pixelated;display:block">'
    ).format(url, side, side)


def cut(shown: int, total: int, what: str) -> str:
    """The sentence of a table that is cut; empty if it is whole.

    Example:
        >>> cut(20, 1000, "images")
        '20 of 1,000 images are shown.'
        >>> cut(20, 20, "images")
        ''
    """
    return "" if shown >= total else f"{shown:,} of {total:,} {what} are shown."
