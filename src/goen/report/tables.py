"""Tables as values, made from result files alone; as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from goen.files import make_folder, whole_file
from goen.metrics import GroupAverages, group_averages
from goen.results import Result

Mark = Literal["", "best", "tied"]
SIGNIFICANT = 0.05
_PAPER_SETS = ("svhn", "cifar100", "noise")


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        value: the number; ``None`` where there is none, and then nothing is filled in.
        form: how it is written, as a format specification.
        low: lower end of its interval, if it has one.
        high: upper end.
        mark: best of its column, or not significantly worse than the best.
        seen: images of this kind calibrated the method.
        text: instead of a number.
    """

    value: float | None = None
    form: str = ".4f"
    low: float | None = None
    high: float | None = None
    mark: Mark = ""
    seen: bool = False
    text: str = ""

    @property
    def words(self) -> str:
        """The number as written, without its interval."""
        if self.text:
            return self.text
        return "n/a" if self.value is None else format(self.value, self.form)

    @property
    def interval(self) -> str:
        """``low-high``, or nothing."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:{self.form}}-{self.high:{self.form}}"


@dataclass(frozen=True)
class Row:
    """A line of a table; lines of one section stand together under its title."""

    label: str
    cells: tuple[Cell, ...]
    section: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a name for its files, a title and notes that say how to read it."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def sections(self) -> list[tuple[str, list[Row]]]:
        """The rows by section, in order."""
        names = dict.fromkeys(row.section for row in self.rows)
        return [(name, [row for row in self.rows if row.section == name]) for name in names]


def marked(cells: Sequence[Cell], *, higher_is_better: bool) -> list[Cell]:
    """The cells of one column, the best of them marked."""
    values = [cell.value for cell in cells if cell.value is not None]
    if not values:
        return list(cells)
    best = max(values) if higher_is_better else min(values)
    return [_with_mark(cell, "best") if cell.value == best else cell for cell in cells]


def _with_mark(cell: Cell, mark: Mark) -> Cell:
    return Cell(cell.value, cell.form, cell.low, cell.high, mark, cell.seen, cell.text)


def bench_tables(results: Sequence[Result], summary: Mapping[str, Any]) -> list[Table]:
    """The tables of a benchmark: AUROC, both FPR95s, the classifier and the cost."""
    bench = _Bench(results, summary)
    conventions = {
        "fpr95_ood_positive": "ID images flagged where 95 % of the OOD images are",
        "fpr95_id_positive": "OOD images passed where 95 % of the ID images are",
    }
    return [
        bench.auroc(),
        *(
            bench.by_set(metric, f"{metric} ({words})", higher_is_better=False)
            for metric, words in conventions.items()
        ),
        bench.classifier(),
    ]


class _Bench:
    def __init__(self, results: Sequence[Result], summary: Mapping[str, Any]) -> None:
        self.summary = summary
        self.by_key = {(r.method, r.dataset, r.metric): r for r in results}
        self.methods = list(summary["titles"])
        self.groups = {r.dataset: r.group for r in results if r.group != "id"}
        self.sets = list(self.groups)
        # The same sets for every method, or the averages could not be compared.
        self.seen = {r.dataset for r in results if r.seen_in_calibration}
        first = results[0]
        self.where = f"{summary['data']}, protocol {first.protocol}, seed {first.seed}"

    def _row(self, method: str, cells: Sequence[Cell]) -> Row:
        title, kind = self.summary["titles"][method]
        return Row(title, tuple(cells), kind)

    def _table(
        self, name: str, title: str, columns: Sequence[str], by_column: Sequence[Sequence[Cell]]
    ) -> Table:
        lines = zip(*by_column, strict=True)
        rows = [self._row(m, cells) for m, cells in zip(self.methods, lines, strict=True)]
        notes = ["Bold: best of its column."]
        if name == "auroc":
            notes = [
                "Bold: best of its column. ≈: not significantly worse than the best on the same "
                f"images (paired DeLong test, Holm's correction, {SIGNIFICANT:.0%}). Intervals: "
                "95 %, over images, not over seeds."
            ]
        if self.seen:
            notes.append(
                f"†: calibrated with other images of this kind. The averages keep such sets "
                f"({', '.join(sorted(self.seen))}) apart for every method."
            )
        for left_out, why in {**self.summary["missing"], **self.summary["skipped"]}.items():
            notes.append(f"Left out: {left_out}. {why}")
        return Table(name, f"{title}: {self.where}", tuple(columns), tuple(rows), tuple(notes))

    def _cells(self, metric: str, name: str) -> list[Cell]:
        found = [self.by_key[method, name, metric] for method in self.methods]
        return [
            Cell(r.value, low=r.low, high=r.high, seen=r.seen_in_calibration, mark=self._tied(r))
            for r in found
        ]

    def _tied(self, result: Result) -> Mark:
        test = self.by_key.get((result.method, result.dataset, "p_against_best"))
        tied = result.metric == "auroc" and test is not None and test.value > SIGNIFICANT
        return "tied" if tied else ""

    def _averages(self, metric: str) -> dict[str, list[Cell]]:
        """The averages as columns, those that no set belongs to left out."""
        every = [
            group_averages(
                {name: self.by_key[method, name, metric].value for name in self.sets},
                groups=self.groups,
                seen=self.seen,
                paper_sets=_PAPER_SETS if set(_PAPER_SETS) <= set(self.sets) else None,
            )
            for method in self.methods
        ]
        wanted: dict[str, Callable[[GroupAverages], float | None]] = {
            "near": lambda a: a.near.unseen,
            "far": lambda a: a.far.unseen,
            "unseen": lambda a: a.unseen,
            "seen": lambda a: a.seen,
            "paper's three": lambda a: a.paper_average,
        }
        columns = {f"mean {k}": [Cell(value(a)) for a in every] for k, value in wanted.items()}
        return {k: cells for k, cells in columns.items() if cells[0].value is not None}

    def by_set(self, metric: str, title: str, *, higher_is_better: bool) -> Table:
        """One metric by method and set, with averages."""
        columns = {f"{n} ({self.groups[n]})": self._cells(metric, n) for n in self.sets}
        if len(self.sets) > 1:
            columns |= self._averages(metric)
        best = [marked(c, higher_is_better=higher_is_better) for c in columns.values()]
        return self._table(metric, title, list(columns), best)

    def auroc(self) -> Table:
        """AUROC by method and set, and whether OOD images were used."""
        table = self.by_set("auroc", "AUROC", higher_is_better=True)
        used = [Cell(text="yes" if m in self.summary["uses_ood"] else "no") for m in self.methods]
        rows = tuple(
            Row(row.label, (*row.cells, cell), row.section)
            for row, cell in zip(table.rows, used, strict=True)
        )
        return Table(table.name, table.title, (*table.columns, "OOD data"), rows, table.notes)

    def classifier(self) -> Table:
        """What each method makes of the classification, and what it costs."""
        metrics = {"accuracy": True, "ece": False, "nll": False, "brier": False}
        columns = [
            marked(self._cells(metric, "test"), higher_is_better=higher)
            for metric, higher in metrics.items()
        ]
        rows = [self.by_key[method, "test", "training_seconds"] for method in self.methods]
        columns.append([Cell(r.value, ".0f") for r in rows])
        columns.append([Cell(r.seconds, ".2f") for r in rows])
        titles = ["accuracy", "ECE", "NLL", "Brier", "training s", "fit and score s"]
        return self._table("classifier", "Classifier and cost", titles, columns)


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown."""

    def written(cell: Cell) -> str:
        text = f"**{cell.words}**" if cell.mark == "best" else cell.words
        text = f"≈ {text}" if cell.mark == "tied" else text
        text = f"{text}†" if cell.seen else text
        return f"{text} ({cell.interval})" if cell.interval else text

    lines = [f"**{table.title}**", ""]
    lines.append(f"| | {' | '.join(table.columns)} |")
    lines.append(f"|---|{'---:|' * len(table.columns)}")
    for section, rows in table.sections():
        if section:
            lines.append(f"| *{section}* |{' |' * len(table.columns)}")
        for row in rows:
            lines.append(f"| {row.label} | {' | '.join(map(written, row.cells))} |")
    notes = [text for note in table.notes for text in ("", note)]
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
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def latex(table: Table) -> str:
    """The table for LaTeX with booktabs."""

    def written(cell: Cell) -> str:
        text = _latex(cell.words)
        text = rf"\textbf{{{text}}}" if cell.mark == "best" else text
        text = rf"$\approx$ {text}" if cell.mark == "tied" else text
        text = rf"{text}$^\dagger$" if cell.seen else text
        return rf"{text} {{\scriptsize {cell.interval}}}" if cell.interval else text

    width = len(table.columns)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        rf"\caption{{{_latex(table.title)}. {' '.join(map(_latex, table.notes))}}}",
        rf"\begin{{tabular}}{{l{'r' * width}}}",
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


def as_csv(table: Table) -> str:
    """The table as CSV with unrounded numbers; an interval has two columns of its own."""
    intervals = [
        any(row.cells[i].low is not None for row in table.rows) for i in range(len(table.columns))
    ]
    header = ["section", "row"]
    for column, has_interval in zip(table.columns, intervals, strict=True):
        header += [column, f"{column} low", f"{column} high"] if has_interval else [column]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in table.rows:
        line: list[object] = [row.section, row.label]
        for cell, has_interval in zip(row.cells, intervals, strict=True):
            line.append(cell.text or cell.value)
            line += [cell.low, cell.high] if has_interval else []
        writer.writerow(line)
    return text.getvalue()


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """Each table as ``NAME.md``, ``NAME.tex`` and ``NAME.csv`` in the folder."""
    make_folder(folder)
    forms = {"md": markdown, "tex": latex, "csv": as_csv}
    for table in tables:
        for suffix, render in forms.items():
            with whole_file(folder / f"{table.name}.{suffix}") as temporary:
                temporary.write_text(render(table), encoding="utf-8")
