"""Tables 1 to 3 of the paper in its own layout, with its numbers above ours."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

from goen.data.protocol import PAPERS_CALIBRATION
from goen.errors import UsageError
from goen.io.results import Result
from goen.report.summary import Study, Summary, read_study
from goen.report.table import Cell, Row, Table, marked

_PAPER = "the paper"
_SETS = {"SVHN": "svhn", "CIFAR-100": "cifar100", "Synthetic": "noise"}
_AVERAGE = "Avg OOD AUROC"
# Of Table 1: the paper's names of the methods and ours.
_METHODS = {
    "StandardNN": "max_softmax",
    "TempScaling": "temperature_scaling",
    "MCDropout": "mc_dropout",
    "Deep Ensemble": "deep_ensemble",
    "EDL": "evidential",
    "EpiNet": "epinet",
    "MoE-K5": "mixture_of_experts",
    "Energy": "energy",
    "ODIN": "odin",
    "Mahalanobis": "mahalanobis",
    "KNN": "knn",
    "GOEN": "goen",
}
_ID = {"ID Acc": "accuracy", "ID ECE": "ece", "ID NLL": "nll", "ID Brier": "brier"}
_LOWER_IS_BETTER = frozenset({"ID ECE", "ID NLL", "ID Brier"})
_TABLE_1: Mapping[str, Sequence[float]] = {
    "ID Acc": (0.8706, 0.8706, 0.9301, 0.9534, 0.8197, 0.8902, 0.8842),
    "ID ECE": (0.0223, 0.0149, 0.0353, 0.0208, 0.1944, 0.0184, 0.0179),
    "ID NLL": (0.3794, 0.3776, 0.2627, 0.1571, 0.8018, 0.3314, 0.3565),
    "ID Brier": (0.1893, 0.1886, 0.1108, 0.0745, 0.3130, 0.1602, 0.1715),
    "SVHN AUROC": (
        *(0.8593, 0.8603, 0.8754, 0.8769, 0.8427, 0.8777),
        *(0.7207, 0.8377, 0.8466, 0.6066, 0.8503, 0.9372),
    ),
    "CIFAR-100 AUROC": (
        *(0.8266, 0.8292, 0.8387, 0.8779, 0.7952, 0.8470),
        *(0.6440, 0.8547, 0.8562, 0.5746, 0.8487, 0.9079),
    ),
    "Synthetic AUROC": (
        *(0.9135, 0.9149, 0.9053, 0.8934, 0.9370, 0.8997),
        *(0.7488, 0.9475, 0.9581, 0.8558, 0.9911, 1.0000),
    ),
    _AVERAGE: (
        *(0.8665, 0.8681, 0.8731, 0.8827, 0.8583, 0.8748),
        *(0.7045, 0.8800, 0.8870, 0.6790, 0.8967, 0.9483),
    ),
}
_GOEN_ACCURACY = 0.9311
# Of Table 2: the paper's name, ours, and ID accuracy and AUROC on its three sets and their mean.
_TABLE_2: Mapping[str, tuple[str, Sequence[float]]] = {
    "GOEN-Default": ("default", (0.9340, 0.9163, 0.8955, 0.9980, 0.9366)),
    "NoCenterLoss": ("no_center_loss", (0.9311, 0.9372, 0.9079, 1.0000, 0.9483)),
    "SingleScale-L4": ("single_scale", (0.9351, 0.8988, 0.8967, 0.9857, 0.9270)),
    "NoSVHN-NoiseOnly": ("no_svhn", (0.9352, 0.9222, 0.8914, 0.9997, 0.9377)),
}
# Of Table 3: mean and standard deviation over five seeds.
_TABLE_3: Mapping[str, tuple[float, float]] = {
    "ID Acc": (0.9344, 0.0013),
    "ID ECE": (0.0355, 0.0013),
    "ID NLL": (0.2345, 0.0074),
    "ID Brier": (0.1044, 0.0028),
    "SVHN AUROC": (0.9233, 0.0134),
    "CIFAR-100 AUROC": (0.8930, 0.0039),
    "Synthetic AUROC": (0.9848, 0.0213),
    _AVERAGE: (0.9337, 0.0085),
}
_NOTES = (
    "The paper: ResNet-18 of width 64, up to 40 epochs for GOEN and 100 for the others, stopped "
    "early. Ours: the preset and the budget of the section. Avg OOD AUROC: the mean of SVHN, "
    "CIFAR-100 and Synthetic, which is the set noise. ±: the standard deviation over seeds; a "
    "number without it is of one seed. n/a: not in the paper, or not run. †: calibrated with other "
    "images of this kind; such a number is not compared, nor is "
    "one of a single seed beside means. Bold: best of its line in the section.",
)


def read_papers_study(path: Path) -> Study:
    """A study of the paper's data; see ``read_study``.

    Raises:
        UsageError: it is of other data.
    """
    study = read_study(path)
    if study.summary.data != "cifar10":
        raise UsageError(
            f"The paper's tables are of CIFAR-10, and {path} is of {study.summary.data}. Run the "
            "study with --data cifar10."
        )
    return study


def paper_tables(studies: Iterable[Study]) -> list[Table]:
    """Table 1 from studies of goen bench, Table 2 from goen ablate, Table 3 from goen seeds.

    A table has a section for every preset and budget; one without a study has the paper's numbers
    alone.
    """
    by_command: dict[str, dict[str, list[Result]]] = {"bench": {}, "ablate": {}, "seeds": {}}
    for study in studies:
        if study.summary.study not in by_command:
            raise UsageError(
                "The paper's tables are made from goen bench, ablate and seeds, got a study of "
                f"goen {study.summary.study}."
            )
        scales = by_command[study.summary.study]
        scales.setdefault(_scale(study.summary), []).extend(study.results)
    return [
        _table_1(by_command["bench"]),
        _table_2(by_command["ablate"]),
        _table_3(by_command["seeds"]),
    ]


def _scale(summary: Summary) -> str:
    """The settings that decide which numbers may stand side by side."""
    preset = "cpu" if summary.config.get("preset") == "auto" else summary.config.get("preset")
    of_run = ""
    if summary.study == "seeds":  # Table 3 is of the paper's default: CenterLoss, two scales
        of_run = f", {'with' if summary.config.get('center_loss') else 'without'} CenterLoss"
        representation = str(summary.config.get("representation", "preset"))
        if representation not in ("preset", "multi_scale"):
            of_run += f", {representation.replace('_', ' ')}"
        if epochs := summary.config.get("head_epochs"):
            of_run += f", head of up to {epochs} epochs"
    precision = summary.config.get("precision", "auto")  # an earlier goen did not have it
    named = "" if precision == "auto" else f", {precision}"
    others = ""
    if summary.calibration_ood not in (frozenset(), frozenset(PAPERS_CALIBRATION["cifar10"])):
        others = f", calibrated with {' and '.join(sorted(summary.calibration_ood))}"
    budget = summary.config.get("budget")
    return f"goen, preset {preset}, budget {budget}{named}{of_run}{others}"


@dataclass
class _Number:
    """A line of a table for one method: its value by seed, and whether it was calibrated on."""

    by_seed: dict[int, float] = field(default_factory=dict)
    seen: bool = False

    @property
    def cell(self) -> Cell:
        """The mean and the standard deviation over seeds."""
        if not self.by_seed:
            return Cell()
        values = self.by_seed.values()
        spread = stdev(values) if len(values) > 1 else None
        return Cell(fmean(values), spread=spread, seen=self.seen)


_Numbers = defaultdict[tuple[str, str], _Number]
"""By method and line of the table; one that is not there has no value."""


def _numbers(results: Iterable[Result]) -> _Numbers:
    wanted = {("test", metric): line for line, metric in _ID.items()}
    wanted |= {(name, "auroc"): f"{title} AUROC" for title, name in _SETS.items()}
    found: _Numbers = defaultdict(_Number)
    for result in results:
        if line := wanted.get((result.dataset, result.metric)):
            number = found[result.method, line]
            if number.by_seed.setdefault(result.seed, result.value) != result.value:
                raise UsageError(
                    f"Two of these studies have different numbers for {result.method}, "
                    f"{line}, seed {result.seed}, with one preset and budget. Name one of them."
                )
            number.seen |= result.seen_in_calibration
    for method in {method for method, _ in found}:
        sets = [found[method, f"{title} AUROC"] for title in _SETS]
        for seed in sorted(set.intersection(*(set(part.by_seed) for part in sets))):
            mean = fmean(part.by_seed[seed] for part in sets)
            found[method, _AVERAGE].by_seed[seed] = mean
        found[method, _AVERAGE].seen = any(part.seen for part in sets)
    return found


def _section(scale: str, results: Iterable[Result]) -> str:
    seeds = ", ".join(map(str, sorted({result.seed for result in results})))
    return f"{scale}, seeds {seeds}"


def _marked(line: str, cells: Sequence[Cell]) -> list[Cell]:
    """The best is marked; a number of one seed does not compete with means over seeds."""
    several = any(cell.spread is not None for cell in cells)
    competing = [
        replace(cell, value=None) if several and cell.spread is None else cell for cell in cells
    ]
    best = marked(competing, higher_is_better=line not in _LOWER_IS_BETTER)
    return [replace(cell, mark=other.mark) for cell, other in zip(cells, best, strict=True)]


def _table_1(scales: Mapping[str, Sequence[Result]]) -> Table:
    """Metrics are rows and methods are columns."""

    def rows(section: str, cell: Callable[[str, str], Cell]) -> list[Row]:
        return [
            Row(line, tuple(_marked(line, [cell(line, title) for title in _METHODS])), section)
            for line in _TABLE_1
        ]

    def paper(line: str, title: str) -> Cell:
        values = dict(zip(_METHODS, _TABLE_1[line], strict=False))
        if line == "ID Acc":
            values["GOEN"] = _GOEN_ACCURACY
        return Cell(values.get(title))

    made = rows(_PAPER, paper)
    for scale, results in scales.items():
        numbers = _numbers(results)
        made += rows(
            _section(scale, results),
            lambda line, title, of=numbers: of[_METHODS[title], line].cell,  # type: ignore[misc]
        )
    title = "Table 1: baselines and GOEN on CIFAR-10 and OOD datasets"
    return Table("paper-table-1", title, tuple(_METHODS), tuple(made), _NOTES)


def _table_2(scales: Mapping[str, Sequence[Result]]) -> Table:
    """Variants are rows."""
    lines = ("ID Acc", *(f"{name} AUROC" for name in _SETS), _AVERAGE)
    made = [
        Row(title, tuple(map(Cell, published)), _PAPER)
        for title, (_, published) in _TABLE_2.items()
    ]
    for scale, results in scales.items():
        numbers, section = _numbers(results), _section(scale, results)
        made += [
            Row(title, tuple(numbers[name, line].cell for line in lines), section)
            for title, (name, _) in _TABLE_2.items()
        ]
    return Table("paper-table-2", "Table 2: ablation of GOEN", lines, tuple(made), _NOTES)


def _table_3(scales: Mapping[str, Sequence[Result]]) -> Table:
    """Metrics are rows; our seeds are columns beside mean and standard deviation."""
    columns, rows = ["paper: mean", "paper: std"], {k: [*map(Cell, v)] for k, v in _TABLE_3.items()}
    for scale, results in scales.items():
        # The classifier's numbers have a method of their own in a study of goen seeds.
        numbers = _numbers(r for r in results if r.method in ("classifier", "goen"))
        seeds = sorted(numbers["goen", _AVERAGE].by_seed)
        columns += [f"{scale}: mean", "std", *(f"seed {seed}" for seed in seeds)]
        for line, cells in rows.items():
            number = numbers["classifier" if line in _ID else "goen", line]
            cells += [Cell(number.cell.value), Cell(number.cell.spread)]
            cells += [Cell(number.by_seed.get(seed)) for seed in seeds]
    made = tuple(Row(line, tuple(cells)) for line, cells in rows.items())
    title = "Table 3: GOEN-Default over seeds"
    return Table("paper-table-3", title, tuple(columns), made, _NOTES)
