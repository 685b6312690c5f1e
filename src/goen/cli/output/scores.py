"""The table of scored images on the terminal.

Written line by line: a table of rich takes a millisecond per row, and there may be 100,000.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap

from rich.cells import cell_len, chop_cells
from rich.text import Text

from goen.cli.output.console import visible_line
from goen.gate.prediction import ScoreRow
from goen.progress import PipeConsole
from goen.scoring.rows import most_unusual_cue

_COLUMNS = ("image", "class", "confidence", "p-value", "decision", "why")
_TO_THE_RIGHT = ("confidence", "p-value")
# Where the terminal is narrow, these are broken into lines of no fewer characters than that.
_LEAST_WIDTHS = {"image": 12, "class": 8, "why": 16}
_GAP = "  "


def print_scores(rows: Sequence[ScoreRow]) -> None:
    """Print the rows as a table; below it, the errors of the files that could not be read.

    The table is as wide as the terminal at most; in a file or a pipe, as wide as it needs to be.
    """
    console = PipeConsole()
    read = [row for row in rows if row["is_ood"] is not None]
    cells = [_cells(row) for row in read]
    widths = _widths(cells, console.width if console.is_terminal else None)
    rule = ("-" if console.options.ascii_only else "─") * _total(widths)
    heading = [*_lines(_COLUMNS, widths), rule] if read else []
    lines = [Text(line, "bold") for line in heading]
    for row, texts in zip(read, cells, strict=True):
        style = "yellow" if row["is_ood"] else ""
        lines += [Text(line, style) for line in _lines(texts, widths)]
    unreadable = [str(row["error"]) for row in rows if row["is_ood"] is None]
    lines += [Text(f"unreadable: {visible_line(error)}", "red") for error in unreadable]
    for line in lines:
        console.print(line, soft_wrap=True)


def print_sentence(sentence: str) -> None:
    """Print a line of text below the table; on a terminal, broken between words."""
    console = PipeConsole()
    console.print(Text(visible_line(sentence)), soft_wrap=not console.is_terminal)


def _cells(row: ScoreRow) -> list[str]:
    return [
        visible_line(str(row["path"])),
        visible_line(str(row["label"])),
        f"{row['confidence'] or 0:.0%}",
        f"{row['p_value'] or 0:.2g}",
        "flagged" if row["is_ood"] else "accepted" if row.get("accepted") else "passed",
        visible_line(str(row["error"] or most_unusual_cue(row))),
    ]


def _widths(cells: Sequence[Sequence[str]], available: int | None) -> list[int]:
    """The width of each column, in cells of the terminal; the widest of the texts give way."""
    columns = [list(column) for column in zip(_COLUMNS, *cells, strict=True)]
    widths = {column[0]: max(map(cell_len, column)) for column in columns}
    while available is not None and _total(widths.values()) > available:
        wide = [name for name, least in _LEAST_WIDTHS.items() if widths[name] > least]
        if not wide:
            break
        widths[max(wide, key=lambda name: widths[name])] -= 1
    return list(widths.values())


def _total(widths: Collection[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _lines(texts: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """The row as one line, or as several where a text is wider than its column."""
    broken = []
    for name, text, width in zip(_COLUMNS, texts, widths, strict=True):
        # A path is broken anywhere, other texts between words if they are not too wide.
        words = wrap(text, width, break_long_words=False, break_on_hyphens=False)
        lines = [text] if name == "image" else words
        broken.append([part for line in lines for part in chop_cells(line, width)])
    for parts in zip_longest(*broken, fillvalue=""):
        padded = []
        for name, part, width in zip(_COLUMNS, parts, widths, strict=True):
            space = " " * (width - cell_len(part))
            padded.append(space + part if name in _TO_THE_RIGHT else part + space)
        yield _GAP.join(padded).rstrip()
