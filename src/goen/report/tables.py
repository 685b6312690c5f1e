"""The tables of each study, made from its results alone."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from goen.metrics import GroupAverages, group_averages, over_seeds
from goen.report.table import Cell, Mark, Row, Table, marked
from goen.runs.results import Result

Summary = Mapping[str, Any]
SIGNIFICANT = 0.05
FPR95 = {
    "fpr95_ood_positive": "ID images flagged where 95 % of the OOD images are",
    "fpr95_id_positive": "OOD images passed where 95 % of the ID images are",
}
RUN_TITLES = {
    "max_softmax": ["max softmax (the usual baseline)", ""],
    "mahalanobis_z": ["distance on the sphere (GOEN without its head)", ""],
    "goen": ["GOEN (the paper's calibrated head)", ""],
}
_PAPER_SETS = ("svhn", "cifar100", "noise")
_HIGHER_IS_BETTER = {"auroc": True, "accuracy": True}


def study_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """The tables of whichever study wrote these results."""
    makers: dict[str, Callable[[Sequence[Result], Summary], list[Table]]] = {
        "run": run_tables,
        "bench": bench_tables,
        "ablate": ablate_tables,
        "seeds": seeds_tables,
        "robust": robust_tables,
        "geometry": geometry_tables,
    }
    tables = makers[summary["study"]](results, summary)
    return [table for table in tables if table.rows]  # no pair of variants, no table of pairs


def run_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """The tables of one run: AUROC, both FPR95s, and what the gate flags."""
    titles = {m: t for m, t in RUN_TITLES.items() if any(r.method == m for r in results)}
    comparison = _Comparison(results, {**summary, "titles": titles, "uses_ood": ["goen"]})
    flagged = [Cell(r.value, ".1%") for r in results if r.metric in ("false_alarm_rate", "flagged")]
    gate = Table(
        "flagged",
        f"Share flagged: {comparison.where}",
        ("test (ID)", *comparison.sets),
        (Row("gate", tuple(flagged)),),
        comparison.left_out(),
    )
    return [comparison.auroc(), *comparison.fpr95(), gate]


def bench_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """The tables of a benchmark: AUROC, both FPR95s, the classifier and the cost."""
    comparison = _Comparison(results, summary)
    rows = [comparison.by_key[m, "test", "training_seconds"] for m in comparison.methods]
    cost = {
        "training s": [Cell(r.value, ".0f") for r in rows],
        "fit and score s": [Cell(r.seconds, ".2f") for r in rows],
    }
    classifier = comparison.table(
        "classifier", "Classifier and cost", {**comparison.classifier(), **cost}
    )
    return [comparison.auroc(), *comparison.fpr95(), classifier]


def ablate_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """The tables of an ablation: as in a benchmark, and the differences with their tests."""
    comparison = _Comparison(results, summary)
    return [
        comparison.auroc(),
        comparison.differences(
            "differences",
            "AUROC minus the default's",
            "p_against_default",
            lambda row: "default",
        ),
        comparison.differences(
            "center_loss",
            "AUROC without CenterLoss minus with it",
            "p_of_center_loss",
            lambda row: str(summary["with_center_loss"][row]),
        ),
        *comparison.fpr95(),
    ]


def seeds_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """Mean, spread and range over seeds; then every seed by itself."""
    seeds = summary["seeds"]
    titles = {m: t for m, t in RUN_TITLES.items() if any(r.method == m for r in results)}
    sets = list(dict.fromkeys(r.dataset for r in results if r.group != "id"))
    by_key = {(r.method, r.dataset, r.metric, r.seed): r for r in results}

    def over(method: str, dataset: str, metric: str) -> list[Cell]:
        values = [by_key[method, dataset, metric, seed].value for seed in seeds]
        seen = by_key[method, dataset, metric, seeds[0]].seen_in_calibration
        spread = over_seeds(values)
        mean = Cell(spread.mean, spread=spread.sd, seen=seen)
        return [mean, Cell(spread.minimum), Cell(spread.maximum)]

    columns = [f"{name}{end}" for name in sets for end in ("", " least", " most")]
    where = f"{summary['data']}, {len(seeds)} seeds ({', '.join(map(str, seeds))})"
    rows = [
        Row(title, tuple(cell for name in sets for cell in over(method, name, "auroc")))
        for method, (title, _) in titles.items()
    ]
    accuracy = over("classifier", "test", "accuracy")
    each = [
        Row(
            f"seed {seed}",
            tuple(Cell(by_key[method, name, "auroc", seed].value) for name in sets),
            title,
        )
        for method, (title, _) in titles.items()
        for seed in seeds
    ]
    notes = ("Mean ± standard deviation over seeds (n - 1), least and most.", *_left_out(summary))
    return [
        Table("auroc", f"AUROC: {where}", tuple(columns), tuple(rows), notes),
        Table(
            "accuracy",
            f"Accuracy: {where}",
            ("mean", "least", "most"),
            (Row("classifier", tuple(accuracy)),),
        ),
        Table("each_seed", f"AUROC by seed: {where}", tuple(sets), tuple(each)),
    ]


def robust_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """Each metric by method and severity, the mean over corruptions; accuracy by corruption."""
    by_key = {(r.method, r.dataset, r.metric): r.value for r in results}
    titles = summary["titles"]
    places = [r.dataset.rsplit("-", 1) for r in results if r.dataset != "clean"]
    corruptions = list(dict.fromkeys(name for name, _ in places))
    severities = list(dict.fromkeys(severity for _, severity in places))
    where = f"{summary['data']}, mean over {len(corruptions)} corruptions"

    def by_severity(metric: str, title: str) -> Table:
        rows = []
        for method, (label, _) in titles.items():
            means = [
                fmean(by_key[method, f"{name}-{severity}", metric] for name in corruptions)
                for severity in severities
            ]
            values = [by_key[method, "clean", metric], *means]
            rows.append(Row(label, tuple(Cell(value) for value in values)))
        columns = ("clean", *(f"severity {severity}" for severity in severities))
        return Table(metric, f"{title}: {where}", columns, tuple(rows), _left_out(summary))

    def by_corruption(metric: str, title: str) -> Table:
        rows = [
            Row(
                name,
                tuple(
                    Cell(fmean(by_key[method, f"{name}-{s}", metric] for s in severities))
                    for method in titles
                ),
            )
            for name in corruptions
        ]
        columns = tuple(label for label, _ in titles.values())
        words = f"{title} by corruption: {summary['data']}, mean over severities"
        return Table(f"{metric}_by_corruption", words, columns, tuple(rows))

    metrics = {
        "accuracy": "Accuracy",
        "ece": "ECE",
        "nll": "NLL",
        "brier": "Brier score",
        "mean_score": "Mean score",
        "flagged": "Share flagged",
    }
    return [
        *(by_severity(metric, title) for metric, title in metrics.items()),
        *(by_corruption(metric, metrics[metric]) for metric in ("accuracy", "flagged")),
    ]


def geometry_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """The measures of each variant's features: one table per feature and set."""
    by_key = {(r.method, r.dataset, r.metric): r.value for r in results}
    measures = list(dict.fromkeys(r.metric.rsplit("/", 1)[1] for r in results))
    tables = []
    for dataset in ("train", "test"):
        for feature in dict.fromkeys(r.metric.split("/")[0] for r in results):
            rows = tuple(
                Row(
                    title,
                    tuple(
                        Cell(by_key.get((method, dataset, f"{feature}/{kind}/{m}")), ".4g")
                        for m in measures
                    ),
                    {"raw": "as they are", "unit": "divided by their length"}[kind],
                )
                for kind in ("raw", "unit")
                for method, (title, _) in summary["titles"].items()
            )
            notes = ("n/a: has no meaning here, or the covariance is singular.",)
            title = f"Geometry of {feature} on {dataset} images: {summary['data']}"
            columns = tuple(m.replace("_", " ") for m in measures)
            tables.append(Table(f"{feature}_{dataset}", title, columns, rows, notes))
    return tables


def _left_out(summary: Summary) -> tuple[str, ...]:
    """A note for each set or method that could not be had."""
    left_out = {**summary["missing"], **summary.get("skipped", {})}
    return tuple(f"Left out: {name}. {why}" for name, why in left_out.items())


class _Comparison:
    """Methods as rows, sets as columns."""

    def __init__(self, results: Sequence[Result], summary: Summary) -> None:
        self.summary = summary
        self.by_key = {(r.method, r.dataset, r.metric): r for r in results}
        self.methods = list(summary["titles"])
        self.groups = {r.dataset: r.group for r in results if r.group != "id"}
        self.sets = list(self.groups)
        # The same sets for every method, or the averages could not be compared.
        self.seen = {r.dataset for r in results if r.seen_in_calibration}
        first = results[0]
        self.where = f"{summary['data']}, budget {first.budget}, seed {first.seed}"

    def left_out(self) -> tuple[str, ...]:
        """A note for each set or method that could not be had."""
        return _left_out(self.summary)

    def table(
        self, name: str, title: str, columns: Mapping[str, Sequence[Cell]], *notes: str
    ) -> Table:
        """A table of these columns, a row per method."""
        lines = zip(*columns.values(), strict=True)
        rows = [
            Row(self.summary["titles"][method][0], cells, self.summary["titles"][method][1])
            for method, cells in zip(self.methods, lines, strict=True)
        ]
        every = (*notes, *self.left_out())
        return Table(name, f"{title}: {self.where}", tuple(columns), tuple(rows), every)

    def cells(self, metric: str, dataset: str) -> list[Cell]:
        """One column, the best marked; nothing where a method has no such number."""
        found = [self.by_key.get((method, dataset, metric)) for method in self.methods]
        cells = [
            Cell()
            if r is None
            else Cell(
                r.value, low=r.low, high=r.high, seen=r.seen_in_calibration, mark=self._tied(r)
            )
            for r in found
        ]
        return marked(cells, higher_is_better=_HIGHER_IS_BETTER.get(metric, False))

    def _tied(self, result: Result) -> Mark:
        test = self.by_key.get((result.method, result.dataset, "p_against_best"))
        tied = result.metric == "auroc" and test is not None and test.value > SIGNIFICANT
        return "tied" if tied else ""

    def _by_set(self, metric: str) -> dict[str, Sequence[Cell]]:
        columns: dict[str, Sequence[Cell]] = {
            f"{name} ({self.groups[name]})": self.cells(metric, name) for name in self.sets
        }
        return columns | (self._averages(metric) if len(self.sets) > 1 else {})

    def _averages(self, metric: str) -> dict[str, Sequence[Cell]]:
        """The averages as columns, but for those of no set and of one."""
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
        better = _HIGHER_IS_BETTER.get(metric, False)
        return {
            f"mean {name}": marked([Cell(value(a)) for a in every], higher_is_better=better)
            for name, (count, value) in wanted.items()
            if count > 1 and value(every[0]) is not None
        }

    def auroc(self) -> Table:
        """AUROC by method and set, and whether OOD images were used."""
        used = [Cell(text="yes" if m in self.summary["uses_ood"] else "no") for m in self.methods]
        notes = ["Bold: best of its column. Intervals: 95 %, over images, not over seeds."]
        if any(metric == "p_against_best" for _, _, metric in self.by_key):
            notes.append(
                "≈: not significantly worse than the best on the same images (paired DeLong test, "
                f"Holm's correction, {SIGNIFICANT:.0%})."
            )
        if self.seen:
            notes.append(
                f"†: calibrated with other images of this kind. The averages keep such sets "
                f"({', '.join(sorted(self.seen))}) apart for every method."
            )
        columns = {**self._by_set("auroc"), "OOD data": used}
        return self.table("auroc", "AUROC", columns, *notes)

    def fpr95(self) -> list[Table]:
        """Both conventions."""
        return [
            self.table(metric, f"{metric} ({words})", self._by_set(metric))
            for metric, words in FPR95.items()
        ]

    def classifier(self) -> dict[str, Sequence[Cell]]:
        """What each method makes of the classification, as columns."""
        metrics = {"accuracy": "accuracy", "ece": "ECE", "nll": "NLL", "brier": "Brier"}
        return {title: self.cells(metric, "test") for metric, title in metrics.items()}

    def differences(
        self, name: str, title: str, test: str, reference: Callable[[str], str]
    ) -> Table:
        """AUROC minus the reference row's, ≈ where the paired test finds no difference."""
        rows = [m for m in self.methods if any((m, s, test) in self.by_key for s in self.sets)]

        def cell(method: str, dataset: str) -> Cell:
            value = self.by_key[method, dataset, "auroc"].value
            base = self.by_key[reference(method), dataset, "auroc"].value
            p = self.by_key[method, dataset, test].value
            return Cell(value - base, "+.4f", mark="tied" if p > SIGNIFICANT else "")

        columns = tuple(f"{name} ({self.groups[name]})" for name in self.sets)
        lines = tuple(
            Row(
                self.summary["titles"][m][0],
                tuple(cell(m, s) for s in self.sets),
                self.summary["titles"][m][1],
            )
            for m in rows
        )
        note = (
            f"≈: no significant difference on the same images (paired DeLong test, "
            f"{SIGNIFICANT:.0%}). One seed: `goen seeds` says how much of a difference is luck."
        )
        return Table(name, f"{title}: {self.where}", columns, lines, (note, *self.left_out()))
