"""Methods compared on the same images: the tables and the page sections that studies share."""

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from goen.metrics import GroupAverages, group_averages
from goen.report.blocks import (
    Drawing,
    Gallery,
    Page,
    PageBlock,
    Paragraph,
    ResultTable,
    Section,
    bold,
    listed,
    slug,
)
from goen.report.figures.bench import Estimate, forest
from goen.report.run_folder import RunFolder
from goen.report.summary import Summary
from goen.report.table import Cell, Mark, Row, Table, marked
from goen.runs.results import Result

FPR95 = {
    "fpr95_ood_positive": "share of ID images flagged where 95 % of the OOD images are flagged",
    "fpr95_id_positive": "share of OOD images passed where 95 % of the ID images are passed",
}
_SIGNIFICANCE = 0.05
_PAPER_SETS = ("svhn", "cifar100", "noise")
_HIGHER_IS_BETTER = frozenset({"auroc", "accuracy"})


def left_out_notes(summary: Summary) -> tuple[str, ...]:
    """A table note for each dataset or method that is missing."""
    return tuple(f"Left out: {name}. {why}" for name, why in summary.left_out.items())


class Comparison:
    """Tables with a row per method and a column per OOD dataset.

    Args:
        results: of the study.
        summary: of the study; its titles are the rows.
    """

    def __init__(self, results: Sequence[Result], summary: Summary) -> None:
        self.summary = summary
        self.by_key = {(r.method, r.dataset, r.metric): r for r in results}
        self.methods = list(summary.titles)
        self.groups = {r.dataset: r.group for r in results if r.group != "id"}
        self.sets = list(self.groups)
        # The same datasets for every method, or the averages could not be compared.
        self.seen = {r.dataset for r in results if r.seen_in_calibration}
        first = results[0]
        self.where = f"{summary.data}, budget {first.budget}, seed {first.seed}"

    def table(
        self, name: str, title: str, columns: Mapping[str, Sequence[Cell]], *notes: str
    ) -> Table:
        """A table of these columns, a row per method."""
        lines = zip(*columns.values(), strict=True)
        rows = [
            Row(self.summary.titles[method][0], cells, self.summary.titles[method][1])
            for method, cells in zip(self.methods, lines, strict=True)
        ]
        every = (*notes, *left_out_notes(self.summary))
        return Table(name, f"{title}: {self.where}", tuple(columns), tuple(rows), every)

    def cells(self, metric: str, dataset: str) -> list[Cell]:
        """One column with the best value marked; an empty cell where a method has no value."""
        found = [self.by_key.get((method, dataset, metric)) for method in self.methods]
        cells = [
            Cell()
            if r is None
            else Cell(
                r.value, low=r.low, high=r.high, seen=r.seen_in_calibration, mark=self._tied(r)
            )
            for r in found
        ]
        return marked(cells, higher_is_better=metric in _HIGHER_IS_BETTER)

    def auroc(self) -> Table:
        """AUROC by method and dataset, and whether OOD images were used."""
        used = [Cell(text="yes" if m in self.summary.uses_ood else "no") for m in self.methods]
        notes = ["Bold: best of its column. Intervals: 95 %, over images, not over seeds."]
        if any(metric == "p_against_best" for _, _, metric in self.by_key):
            notes.append(
                "≈: not significantly worse than the best on the same images (paired DeLong test, "
                f"Holm's correction, {_SIGNIFICANCE:.0%})."
            )
        if self.seen:
            notes.append(
                "†: calibrated with other images of this kind. The averages separate such datasets "
                f"({', '.join(sorted(self.seen))}) from the unseen ones for every method."
            )
        columns = {**self._by_set("auroc"), "OOD data": used}
        return self.table("auroc", "AUROC", columns, *notes)

    def fpr95(self) -> list[Table]:
        """FPR95 by method and dataset, a table for each of the two conventions."""
        return [
            self.table(metric, f"{metric} ({meaning})", self._by_set(metric))
            for metric, meaning in FPR95.items()
        ]

    def classifier(self) -> dict[str, Sequence[Cell]]:
        """Accuracy and calibration of each method's classifier, as columns."""
        metrics = {"accuracy": "accuracy", "ece": "ECE", "nll": "NLL", "brier": "Brier"}
        return {title: self.cells(metric, "test") for metric, title in metrics.items()}

    def differences(
        self, name: str, title: str, test: str, reference: Callable[[str], str]
    ) -> Table:
        """AUROC minus that of a reference row, ≈ where the paired test finds no difference.

        Args:
            name: of the table's files.
            title: of the table.
            test: the metric with the p-value of the difference; methods without it have no row.
            reference: the row that a method is compared with.
        """
        tested = [m for m in self.methods if any((m, s, test) in self.by_key for s in self.sets)]

        def cell(method: str, dataset: str) -> Cell:
            value = self.by_key[method, dataset, "auroc"].value
            base = self.by_key[reference(method), dataset, "auroc"].value
            p = self.by_key[method, dataset, test].value
            return Cell(value - base, "+.4f", mark="tied" if p > _SIGNIFICANCE else "")

        columns = tuple(f"{name} ({self.groups[name]})" for name in self.sets)
        rows = tuple(
            Row(
                self.summary.titles[m][0],
                tuple(cell(m, s) for s in self.sets),
                self.summary.titles[m][1],
            )
            for m in tested
        )
        note = (
            "≈: no significant difference on the same images (paired DeLong test, "
            f"{_SIGNIFICANCE:.0%}). One seed: `goen seeds` measures the spread over trainings."
        )
        notes = (note, *left_out_notes(self.summary))
        return Table(name, f"{title}: {self.where}", columns, rows, notes)

    def _tied(self, result: Result) -> Mark:
        test = self.by_key.get((result.method, result.dataset, "p_against_best"))
        tied = result.metric == "auroc" and test is not None and test.value > _SIGNIFICANCE
        return "tied" if tied else ""

    def _by_set(self, metric: str) -> dict[str, Sequence[Cell]]:
        columns: dict[str, Sequence[Cell]] = {
            f"{name} ({self.groups[name]})": self.cells(metric, name) for name in self.sets
        }
        return columns | (self._averages(metric) if len(self.sets) > 1 else {})

    def _averages(self, metric: str) -> dict[str, Sequence[Cell]]:
        """The averages over two datasets or more, as columns."""
        every = [
            group_averages(
                {name: self.by_key[method, name, metric].value for name in self.sets},
                groups=self.groups,
                seen=self.seen,
                paper_sets=_PAPER_SETS if set(_PAPER_SETS) <= set(self.sets) else None,
            )
            for method in self.methods
        ]
        unseen = [name for name in self.sets if name not in self.seen]
        of_group = {g: [n for n in unseen if self.groups[n] == g] for g in ("near", "far")}
        wanted: dict[str, tuple[int, Callable[[GroupAverages], float | None]]] = {
            "near": (len(of_group["near"]), lambda a: a.near.unseen),
            "far": (len(of_group["far"]), lambda a: a.far.unseen),
            "unseen": (len(unseen), lambda a: a.unseen),
            "seen": (len(self.seen), lambda a: a.seen),
            "paper's three": (3, lambda a: a.paper_average),
        }
        better = metric in _HIGHER_IS_BETTER
        return {
            f"mean {name}": marked([Cell(value(a)) for a in every], higher_is_better=better)
            for name, (count, value) in wanted.items()
            if count > 1 and value(every[0]) is not None
        }


def comparison_page(
    run: RunFolder,
    tables: Sequence[Table],
    *,
    title: str,
    compared: str,
    sections: Sequence[Section] = (),
) -> Page:
    """A summary, the AUROCs with their intervals, further sections, the other tables.

    Args:
        run: the study.
        tables: of the study, that of the AUROC first.
        title: of the page.
        compared: what the rows are, in the plural.
        sections: of this study alone.
    """
    every = [
        Section("AUROC", [*_auroc_figures(run), *map(ResultTable, tables[:1])]),
        *sections,
        Section("Other measures", list(map(ResultTable, tables[1:]))),
    ]
    return Page(f"{title} on {run.summary.data}", _summary(run, compared), every)


def _summary(run: RunFolder, compared: str) -> list[PageBlock]:
    best = []
    for name in _unseen_first(run):
        found = [r for r in run.results if r.dataset == name and r.metric == "auroc"]
        top = max(found, key=lambda r: r.value)
        seen = ", calibrated with images of this kind" if top.seen_in_calibration else ""
        best.append(
            Markup("{} on {} ({}{})").format(bold(top.value), name, run.label(top.method), seen)
        )
    budgets = ", ".join(dict.fromkeys(r.budget for r in run.results))
    seeds = ", ".join(dict.fromkeys(str(r.seed) for r in run.results))
    lead = Markup(
        "{} {} were compared on the same images of {}, budget {}, seed {}. The highest AUROC is {}."
    ).format(len(run.titles), compared, run.summary.data, budgets, seeds, listed(best))
    caution = (
        "Each network was trained once. The intervals are over images and do not include the "
        "spread over seeds, so a small lead is not a ranking."
    )
    return [Paragraph(lead, "lead"), Paragraph(caution)]


def _unseen_first(run: RunFolder) -> list[str]:
    return sorted(run.sets, key=lambda name: name in run.seen)


def _auroc_figures(run: RunFolder) -> list[PageBlock]:
    drawings = [
        _forest(run, name, part, methods)
        for name in _unseen_first(run)
        for part, methods in _parts(run).items()
    ]
    text = (
        "A line is the 95 % interval. Blue discs: the method was calibrated without images of this "
        "kind. Orange squares: it was calibrated with other images of this kind. Datasets of a "
        "kind that calibrated no method come first: they measure detection of unseen OOD data."
    )
    return [Paragraph(text), Gallery(tuple(drawings))]


def _parts(run: RunFolder) -> dict[str, list[str]]:
    """All methods together, or by section where sections repeat each other's titles."""
    titles = [title for title, _ in run.titles.values()]
    parts: dict[str, list[str]] = {}
    for method, (_, section) in run.titles.items():
        parts.setdefault(section if len(set(titles)) < len(titles) else "", []).append(method)
    return parts


def _forest(run: RunFolder, name: str, part: str, methods: Sequence[str]) -> Drawing:
    estimates = []
    for method in methods:
        label = run.titles[method][0]
        r = run.by_key.get((method, name, "auroc"))
        estimates.append(
            Estimate(label, None)
            if r is None
            else Estimate(label, r.value, r.low, r.high, r.seen_in_calibration)
        )
    title = f"{name}, {part}" if part else f"{name} ({run.sets[name]})"
    values = "; ".join(
        f"{e.label} {'not measured' if e.value is None else format(e.value, '.4f')}"
        for e in estimates
    )
    alt = f"AUROC with 95 % intervals on {title}: {values}."
    return Drawing(
        f"auroc-{slug(name)}{f'-{slug(part)}' * bool(part)}", forest(title, estimates), alt
    )
