"""The report of ``goen seeds``: the spread over trainings."""

from collections.abc import Sequence
from statistics import fmean

from goen.io.results import Result
from goen.metrics import over_seeds
from goen.report.blocks import Drawing, Page, Paragraph, Section
from goen.report.comparison import CLASSIFIER, PAPER_SETS, apart_notes, left_out_notes
from goen.report.figures.bench import seed_points
from goen.report.run_folder import RunFolder
from goen.report.summary import Study, Summary
from goen.report.table import Cell, Row, Table
from goen.report.texts import text_of

_DRAWN = {
    "auroc": "AUROC",
    "fpr95_ood_positive": "FPR95, OOD positive",
    "flagged": "share flagged",
    "false_alarm_rate": "share of ID flagged",
    "accuracy": "accuracy",
    "ece": "ECE",
    "nll": "NLL",
    "brier": "Brier score",
}


def seeds_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """Mean, spread and range over seeds; then every seed by itself."""
    study, seeds = Study(results, summary), summary.seeds
    groups = _averages(study)
    by_key = {(r.method, r.dataset, r.metric, r.seed): r for r in results}

    def one(method: str, names: Sequence[str], metric: str, seed: int) -> Cell:
        found = [by_key[method, name, metric, seed] for name in names]
        seen = any(r.seen_in_calibration for r in found)
        return Cell(fmean(r.value for r in found), seen=seen)

    def over(method: str, names: Sequence[str], metric: str) -> list[Cell]:
        cells = [one(method, names, metric, seed) for seed in seeds]
        spread = over_seeds([cell.value for cell in cells if cell.value is not None])
        mean = Cell(spread.mean, spread=spread.sd, seen=cells[0].seen)
        return [mean, Cell(spread.minimum), Cell(spread.maximum)]

    where = f"{summary.data}, {len(seeds)} seeds ({', '.join(map(str, seeds))})"
    columns = tuple(f"{title}{end}" for title in groups for end in ("", " least", " most"))
    rows = tuple(
        Row(title, tuple(c for names in groups.values() for c in over(method, names, "auroc")))
        for method, (title, _) in summary.titles.items()
    )
    classifier = tuple(
        Row(title, tuple(over("classifier", ["test"], metric)))
        for metric, (title, _) in CLASSIFIER.items()
    )
    each = tuple(
        Row(f"seed {seed}", tuple(one(m, names, "auroc", seed) for names in groups.values()), title)
        for m, (title, _) in summary.titles.items()
        for seed in seeds
    )
    note = "Mean ± standard deviation over seeds (n - 1), least and most."
    notes = (*apart_notes(study), *left_out_notes(summary))
    apart = next((i for i, names in enumerate(groups.values()) if study.seen & {*names}), None)
    return [
        Table("auroc", f"AUROC: {where}", columns, rows, (note, *notes), apart and 3 * apart),
        Table("classifier", f"Classifier: {where}", ("mean", "least", "most"), classifier, (note,)),
        Table("each_seed", f"AUROC by seed: {where}", tuple(groups), each, notes, apart),
    ]


def _averages(study: Study) -> dict[str, Sequence[str]]:
    """The columns: the mean of unseen sets and each of them, then the others, the paper's mean."""
    groups: dict[str, Sequence[str]] = {}
    if len(study.unseen) > 1:
        groups["mean unseen"] = study.unseen
    groups |= {name: [name] for name in study.sets}
    if {*PAPER_SETS} <= {*study.sets}:
        groups["mean paper's three"] = PAPER_SETS
    return groups


def seeds_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """Points per seed with mean and standard deviation; a table of every number."""
    seeds = list(dict.fromkeys(r.seed for r in run.results))
    lead = text_of("seeds.html", "lead", data=run.summary.data, seeds=seeds)
    sections = [
        Section("Spread over seeds", [text_of("seeds.html", "spread"), _drawings(run)]),
        Section("Tables", tables),
    ]
    return Page(f"Seeds on {run.summary.data}", [Paragraph(lead, "lead")], sections)


def _drawings(run: RunFolder) -> list[Drawing]:
    drawings = []
    for metric, name in _DRAWN.items():
        by_set: dict[str, dict[str, list[float]]] = {}
        for r in run.results:
            if r.metric == metric:
                by_set.setdefault(r.dataset, {}).setdefault(run.label(r.method), []).append(r.value)
        for dataset, rows in by_set.items():
            several = {label: values for label, values in rows.items() if len(values) > 1}
            if several:
                ranges = "; ".join(
                    f"{row} from {min(v):.4f} to {max(v):.4f}" for row, v in several.items()
                )
                figure = seed_points(f"{name}: {dataset}", name, several)
                alt = f"{name} on {dataset} over the seeds: {ranges}."
                drawings.append(Drawing(f"seeds-{metric}-{dataset}", figure, alt))
    return drawings
