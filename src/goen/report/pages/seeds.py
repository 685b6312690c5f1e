"""The report of ``goen seeds``: the spread over trainings."""

from collections.abc import Mapping, Sequence

from goen.io.results import Result
from goen.metrics import over_seeds
from goen.report.blocks import Drawing, Page, Paragraph, Section, text_of
from goen.report.comparison import apart_notes, left_out_notes
from goen.report.figures.bench import seed_points
from goen.report.run_folder import RunFolder
from goen.report.summary import Summary
from goen.report.table import Cell, Row, Table

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
    seeds = summary.seeds
    groups, seen = summary.unseen_first(results)
    sets = list(groups)
    unseen = len(sets) - len(seen) if 0 < len(seen) < len(sets) else None
    by_key = {(r.method, r.dataset, r.metric, r.seed): r for r in results}

    def over(method: str, dataset: str, metric: str) -> list[Cell]:
        values = [by_key[method, dataset, metric, seed].value for seed in seeds]
        spread = over_seeds(values)
        calibrated = by_key[method, dataset, metric, seeds[0]].seen_in_calibration
        mean = Cell(spread.mean, spread=spread.sd, seen=calibrated)
        return [mean, Cell(spread.minimum), Cell(spread.maximum)]

    def one(method: str, dataset: str, seed: int) -> Cell:
        r = by_key[method, dataset, "auroc", seed]
        return Cell(r.value, seen=r.seen_in_calibration)

    columns = [f"{name}{end}" for name in sets for end in ("", " least", " most")]
    where = f"{summary.data}, {len(seeds)} seeds ({', '.join(map(str, seeds))})"
    rows = [
        Row(title, tuple(cell for name in sets for cell in over(method, name, "auroc")))
        for method, (title, _) in summary.titles.items()
    ]
    accuracy = over("classifier", "test", "accuracy")
    each = [
        Row(
            f"seed {seed}",
            tuple(one(method, name, seed) for name in sets),
            title,
        )
        for method, (title, _) in summary.titles.items()
        for seed in seeds
    ]
    note = "Mean ± standard deviation over seeds (n - 1), least and most."
    notes = (*apart_notes([name for name in sets if name in seen]), *left_out_notes(summary))
    by_seed = f"AUROC by seed: {where}"
    return [
        Table(
            "auroc",
            f"AUROC: {where}",
            tuple(columns),
            tuple(rows),
            (note, *notes),
            apart=unseen and 3 * unseen,
        ),
        Table(
            "accuracy",
            f"Accuracy: {where}",
            ("mean", "least", "most"),
            (Row("classifier", tuple(accuracy)),),
        ),
        Table("each_seed", by_seed, tuple(sets), tuple(each), notes, apart=unseen),
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
                drawings.append(_drawing(metric, name, dataset, several))
    return drawings


def _drawing(
    metric: str, name: str, dataset: str, by_row: Mapping[str, Sequence[float]]
) -> Drawing:
    ranges = "; ".join(f"{row} from {min(v):.4f} to {max(v):.4f}" for row, v in by_row.items())
    return Drawing(
        f"seeds-{metric}-{dataset}",
        seed_points(f"{name}: {dataset}", name, by_row),
        f"{name} on {dataset} over the seeds: {ranges}.",
    )
