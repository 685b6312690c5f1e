"""A table as a value, and its file formats: Markdown, LaTeX and CSV."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from goen.escaping import csv_line
from goen.io.files import whole_folder
from goen.report.texts import environment

Mark = Literal["", "best", "tied"]


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        value: the number; ``None`` where there is none.
        form: its format specification.
        spread: its standard deviation over seeds, if it is a mean.
        low: lower end of its interval, if it has one.
        high: upper end.
        mark: best of its column; or tied: it shows the same number as another best one, or is not
            significantly worse than the best.
        seen: images of this kind calibrated the method.
        inverted: it is an AUROC below 0.5: the method ranks the wrong way round.
        text: instead of a number.
    """

    value: float | None = None
    form: str = ".4f"
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    mark: Mark = ""
    seen: bool = False
    inverted: bool = False
    text: str = ""

    @property
    def missing(self) -> bool:
        """Whether there is nothing to show."""
        return self.value is None and not self.text

    @property
    def formatted(self) -> str:
        """The formatted number, without its interval."""
        if self.text:
            return self.text
        if self.value is None:
            return "n/a"
        sign, digits = ("+", self.form[1:]) if self.form.startswith("+") else ("", self.form)
        around = "" if self.spread is None else f" ± {self.spread:{self.form}}"
        return format(self.value, f"{sign}z{digits}") + around  # z: no negative zero

    @property
    def interval(self) -> str:
        """``low-high``, ``low to high`` where signs are written, or nothing."""
        if self.low is None or self.high is None:
            return ""
        between = " to " if self.form.startswith("+") else "-"
        return f"{self.low:{self.form}}{between}{self.high:{self.form}}"


@dataclass(frozen=True)
class Row:
    """A row of a table; rows of one section are grouped under its title."""

    label: str
    cells: tuple[Cell, ...]
    section: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: of its files.
        title: above it.
        columns: their names.
        rows: each with a cell per column.
        notes: below it.
        apart: the index of the first column that is set apart from those before it, if any.
        filters: columns of words by which a page lets its reader choose rows.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    apart: int | None = None
    filters: tuple[str, ...] = ()

    def sections(self) -> list[tuple[str, list[Row]]]:
        """The rows by section, in order."""
        names = dict.fromkeys(row.section for row in self.rows)
        return [(name, [row for row in self.rows if row.section == name]) for name in names]


def share_cell(count: int, total: int) -> Cell:
    """``count / total`` with its exact (Clopper-Pearson) interval; empty if there are none."""
    if not total:
        return Cell()
    from scipy.stats import binomtest  # slow to import

    found = binomtest(count, total)
    low, high = found.proportion_ci()
    return Cell(found.statistic, ".1%", low=low, high=high)


def marked(cells: Sequence[Cell], *, higher_is_better: bool) -> list[Cell]:
    """The cells of one column, the best of them marked.

    A row that images of this kind calibrated does not compete: its number is not comparable with
    the others. Where several show the best number, none of them is best: they are tied.

    Example:
        >>> cells = [Cell(0.9), Cell(0.95, seen=True), Cell(0.8)]
        >>> [cell.mark for cell in marked(cells, higher_is_better=True)]
        ['best', '', '']
        >>> [cell.mark for cell in marked([Cell(1.0), Cell(0.99999)], higher_is_better=True)]
        ['tied', 'tied']
    """
    values = [cell.value for cell in cells if cell.value is not None and not cell.seen]
    if not values:
        return list(cells)
    best = max(values) if higher_is_better else min(values)

    def wins(cell: Cell) -> bool:
        if cell.value is None or cell.seen:
            return False
        return format(cell.value, cell.form) == format(best, cell.form)

    mark: Mark = "best" if sum(map(wins, cells)) == 1 else "tied"
    return [replace(cell, mark=mark) if wins(cell) else cell for cell in cells]


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown; an empty column separates what is set apart."""
    return environment().get_template("table.md").render(table=table)


def latex(table: Table) -> str:
    """The table for LaTeX with booktabs."""
    return environment().get_template("table.tex").render(table=table)


def as_csv(table: Table) -> str:
    """The table as CSV with unrounded numbers; intervals, spreads and † have their own columns."""
    lines: list[list[object]] = [["section", "row"]]
    lines += [[row.section, row.label] for row in table.rows]
    for number, column in enumerate(table.columns):
        cells = [row.cells[number] for row in table.rows]
        further: dict[str, list[object]] = {column: [cell.text or cell.value for cell in cells]}
        for name in ("spread", "low", "high"):
            values = [getattr(cell, name) for cell in cells]
            if any(value is not None for value in values):
                further[f"{column} {name}"] = values
        if any(cell.seen for cell in cells):
            further[f"{column} calibrated"] = [cell.seen for cell in cells]
        for title, values in further.items():
            for line, value in zip(lines, [title, *values], strict=True):
                line.append(value)
    return "".join(map(csv_line, lines))


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """Each table as Markdown, LaTeX and CSV, in place of what was written there before."""
    forms = {"md": markdown, "tex": latex, "csv": as_csv}
    with whole_folder(folder, "tables", overwrite=True) as temporary:
        for table in tables:
            for suffix, written in forms.items():
                file = temporary / f"{table.name}.{suffix}"
                file.write_text(written(table), encoding="utf-8")
