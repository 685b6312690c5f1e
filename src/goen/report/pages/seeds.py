"""The report of ``goen seeds``: the spread over trainings."""

from collections.abc import Sequence

from goen.io.results import Result
from goen.metrics import over_seeds
from goen.report.blocks import Drawing, Page, Paragraph, Section
from goen.report.comparison import apart_notes, left_out_notes
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
}


def seeds_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """Mean, spread and range over seeds; then every seed by itself."""
    study, seeds = Study(results, summary), summary.seeds
    sets, methods = list(study.sets), summary.titles.items()
    unseen = len(study.unseen) if study.unseen and study.seen else None
    by_key = {(r.method, r.dataset, r.metric, r.seed): r for r in results}

    def over(method: str, dataset: str, metric: str) -> list[Cell]:
        found = [by_key[method, dataset, metric, seed] for seed in seeds]
        spread = over_seeds([r.value for r in found])
        mean = Cell(spread.mean, spread=spread.sd, seen=found[0].seen_in_calibration)
        return [mean, Cell(spread.minimum), Cell(spread.maximum)]

    def one(method: str, dataset: str, seed: int) -> Cell:
        r = by_key[method, dataset, "auroc", seed]
        return Cell(r.value, seen=r.seen_in_calibration)

    where = f"{summary.data}, {len(seeds)} seeds ({', '.join(map(str, seeds))})"
    columns = tuple(f"{name}{end}" for name in sets for end in ("", " least", " most"))
    rows = tuple(
        Row(title, tuple(cell for name in sets for cell in over(method, name, "auroc")))
        for method, (title, _) in methods
    )
    accuracy = Row("classifier", tuple(over("classifier", "test", "accuracy")))
    each = tuple(
        Row(f"seed {seed}", tuple(one(method, name, seed) for name in sets), title)
        for method, (title, _) in methods
        for seed in seeds
    )
    note = "Mean ± standard deviation over seeds (n - 1), least and most."
    notes = (*apart_notes(study), *left_out_notes(summary))
    apart = unseen and 3 * unseen
    return [
        Table("auroc", f"AUROC: {where}", columns, rows, (note, *notes), apart),
        Table("accuracy", f"Accuracy: {where}", ("mean", "least", "most"), (accuracy,)),
        Table("each_seed", f"AUROC by seed: {where}", tuple(sets), each, notes, unseen),
    ]


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
