"""A table on the terminal."""

from rich.box import SIMPLE_HEAD
from rich.markup import escape as escape_markup
from rich.measure import Measurement
from rich.table import Table as RichTable

from goen.escaping import visible
from goen.progress import PipeConsole
from goen.report.table import Cell, Table

_WIDE = PipeConsole(width=10_000).options


def _escape(text: str) -> str:
    return escape_markup(visible(text))


def print_table(table: Table) -> None:
    """Print the table on standard output, wider than the terminal if it needs to be."""
    console = PipeConsole()
    rich = RichTable(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    rich.add_column("", no_wrap=True)
    for number, column in enumerate(table.columns):
        if number == table.apart:
            rich.add_column("│", no_wrap=True)
        cells = [row.cells[number] for row in table.rows]
        widest = max(len(line) for cell in cells for line in _lines(cell))
        words = column.replace("-", "- ").split() or [""]
        header = "\n".join(words)
        width = max(widest, *map(len, words))
        rich.add_column(_escape(header), justify="right", min_width=width, no_wrap=True)
    for section, rows in table.sections():
        if section:
            rich.add_row(f"[dim italic]{_escape(section)}[/]")
        for row in rows:
            written = [_written(cell) for cell in row.cells]
            if table.apart is not None:
                lines = max(text.count("\n") for text in written) + 1
                written.insert(table.apart, "\n".join("│" * lines))
            rich.add_row(_escape(row.label), *written)
        rich.add_section()
    # Wider than the terminal rather than with columns cut off.
    wide = PipeConsole(width=max(console.width, Measurement.get(console, _WIDE, rich).maximum))
    wide.print(_escape(table.title), style="table.title", highlight=False)
    wide.print(rich)
    for note in table.notes:
        console.print(visible(note), style="dim", highlight=False, markup=False)
    console.print()


def _lines(cell: Cell) -> list[str]:
    """The number with its marks, and its interval below it, short."""
    number = ("≈" if cell.mark == "tied" else "") + cell.formatted
    number += ("†" if cell.seen else "") + ("‡" if cell.inverted else "")
    if cell.low is None or cell.high is None:
        return [number]
    low, high = (f"{end:.3f}".removeprefix("0") for end in (cell.low, cell.high))
    return [number, f"{low}-{high}"]


def _written(cell: Cell) -> str:
    number, *interval = map(_escape, _lines(cell))
    lines = [f"[bold]{number}[/]" if cell.mark == "best" else number]
    return "\n".join([*lines, *(f"[dim]{line}[/]" for line in interval)])
