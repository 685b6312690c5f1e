"""Tables on the terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from goen.report.table import Cell, Table


def print_table(table: Table) -> None:
    """The table on standard output, as wide as it needs to be where that is not a terminal."""
    console = Console()
    rich = RichTable(title=escape(table.title), title_justify="left", box=SIMPLE_HEAD)
    rich.add_column("", no_wrap=True)
    for column in table.columns:
        rich.add_column(escape(column), justify="right")
    for section, rows in table.sections():
        if section:
            rich.add_row(f"[dim italic]{escape(section)}[/]")
        for row in rows:
            rich.add_row(escape(row.label), *map(_written, row.cells))
        rich.add_section()
    console.print(rich)
    for note in table.notes:
        console.print(note, style="dim", highlight=False, markup=False)
    console.print()


def _written(cell: Cell) -> str:
    text = escape(cell.words)
    text = f"[bold]{text}[/]" if cell.mark == "best" else text
    text = f"≈{text}" if cell.mark == "tied" else text
    text = f"{text}†" if cell.seen else text
    return f"{text}\n[dim]{cell.low:.3f}-{cell.high:.3f}[/]" if cell.interval else text
