"""A table as a value, and its file formats: Markdown, LaTeX and CSV."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from goen.escaping import csv_line, visible
from goen.io.files import whole_folder

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
        text: instead of a number.
    """

    value: float | None = None
    form: str = ".4f"
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    mark: Mark = ""
    seen: bool = False
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
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    apart: int | None = None

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


def _markdown(text: str) -> str:
    """The text in one line of a cell, without a tag or the end of the cell."""
    plain = visible(" ".join(text.split())).replace("|", r"\|")
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", plain)


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown; an empty column separates what is set apart."""

    def written(cell: Cell) -> str:
        text = _markdown(cell.formatted)
        text = f"**{text}**" if cell.mark == "best" else text
        text = f"≈ {text}" if cell.mark == "tied" else text
        text = f"{text}†" if cell.seen else text
        return f"{text} ({cell.interval})" if cell.interval else text

    def line(first: str, others: Sequence[str]) -> str:
        cells = list(others)
        if table.apart is not None:
            cells.insert(table.apart, "")
        return "|" + "".join(f" {cell} |" if cell else " |" for cell in (first, *cells))

    width = len(table.columns) + (table.apart is not None)
    lines = [f"**{_markdown(table.title)}**", "", line("", list(map(_markdown, table.columns)))]
    lines.append(f"|---|{'---:|' * width}")
    for section, rows in table.sections():
        if section:
            lines.append(line(f"*{_markdown(section)}*", [""] * len(table.columns)))
        lines += [line(_markdown(row.label), list(map(written, row.cells))) for row in rows]
    notes = [text for note in table.notes for text in ("", _markdown(note))]
    return "\n".join([*lines, *notes]) + "\n"


_LATEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "≈": r"$\approx$",
    "†": r"$^\dagger$",
    "±": r"$\pm$",
}


def _latex(text: str) -> str:
    plain = visible(" ".join(text.split()))  # an empty line would end the paragraph
    return "".join(_LATEX.get(character, character) for character in plain)


def latex(table: Table) -> str:
    """The table for LaTeX with booktabs."""

    def written(cell: Cell) -> str:
        text = _latex(cell.formatted)
        text = rf"\textbf{{{text}}}" if cell.mark == "best" else text
        text = rf"$\approx$ {text}" if cell.mark == "tied" else text
        text = rf"{text}$^\dagger$" if cell.seen else text
        return rf"{text} {{\scriptsize {cell.interval}}}" if cell.interval else text

    width = len(table.columns)
    together = width if table.apart is None else table.apart
    alignment = "|".join("r" * number for number in (together, width - together) if number)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        rf"\caption{{{_latex(table.title)}. {' '.join(map(_latex, table.notes))}}}",
        rf"\begin{{tabular}}{{l{alignment}}}",
        r"\toprule",
        f" & {' & '.join(map(_latex, table.columns))} " + r"\\",
    ]
    for section, rows in table.sections():
        lines.append(r"\midrule")
        if section:
            lines.append(rf"\multicolumn{{{width + 1}}}{{l}}{{\emph{{{_latex(section)}}}}} \\")
        for row in rows:
            lines.append(f"{_latex(row.label)} & {' & '.join(map(written, row.cells))} " + r"\\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


# Attributes of cells that have columns of their own in CSV, and the names of these.
_FURTHER = {"spread": "spread", "low": "low", "high": "high", "seen": "calibrated"}


def _further(cells: Sequence[Cell]) -> list[str]:
    """Those that a cell of this column has."""
    names = [n for n in ("spread", "low", "high") if any(getattr(c, n) is not None for c in cells)]
    if any(cell.seen for cell in cells):
        names.append("seen")
    return names


def as_csv(table: Table) -> str:
    """The table as CSV with unrounded numbers; intervals, spreads and † have their own columns."""
    cells = list(zip(*(row.cells for row in table.rows), strict=True))
    extras = list(map(_further, cells))
    header = ["section", "row"]
    for column, names in zip(table.columns, extras, strict=True):
        header += [column, *(f"{column} {_FURTHER[name]}" for name in names)]
    lines: list[list[object]] = [[*header]]
    for row in table.rows:
        line: list[object] = [row.section, row.label]
        for cell, names in zip(row.cells, extras, strict=True):
            line += [cell.text or cell.value, *(getattr(cell, name) for name in names)]
        lines.append(line)
    return "".join(map(csv_line, lines))


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """Each table as Markdown, LaTeX and CSV, in place of what was written there before."""
    forms = {"md": markdown, "tex": latex, "csv": as_csv}
    with whole_folder(folder, "tables", overwrite=True) as temporary:
        for table in tables:
            for suffix, written in forms.items():
                file = temporary / f"{table.name}.{suffix}"
                file.write_text(written(table), encoding="utf-8")
