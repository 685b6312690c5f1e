"""The report of ``goen geometry``: the shape of the feature space."""

from collections.abc import Sequence
from functools import partial

from goen.io.results import Result
from goen.report.blocks import Drawing, Page, PageBlock, Paragraph, Section
from goen.report.figures.geometry import measure_bars, measure_by_epoch
from goen.report.run_folder import RunFolder
from goen.report.summary import Summary
from goen.report.table import Cell, Row, Table
from goen.report.texts import slug, text_of

_text = partial(text_of, "geometry.html")
_MEASURES = {
    "inter_intra_ratio": "inter/intra class ratio",
    "total_top_share": "top component's share of the variance",
    "condition_number": "condition number",
    "condition_number_ridged": "condition number with the ridge",
    "total_effective_rank": "effective rank",
    "nc1": "NC1: spread within classes (0 = collapsed)",
    "nc2_equinorm": "NC2: equal lengths (0 = collapsed)",
    "nc2_equiangularity": "NC2: equal angles (0 = collapsed)",
    "nc2_simplex": "NC2: distance from the simplex (0 = collapsed)",
    "nc3": "NC3: weights against means (0 = collapsed)",
    "nc4": "NC4: agreement with the nearest mean (1 = collapsed)",
}
_DEFINITIONS = {
    "inter_intra_ratio": "distance between two class means over that of a feature to its class "
    "mean, both as root mean squares",
    "total_top_share": "top principal component's share of the variance around the mean of all",
    "within_top_share": "the same around the class means",
    "total_effective_rank": "exp of the entropy of the variance's shares by principal component",
    "within_effective_rank": "the same around the class means",
    "condition_number": "largest over smallest eigenvalue of the covariance around the class means",
    "condition_number_ridged": "the same with the ridge of 0.00001 on its diagonal",
    "nc1": "spread within classes against that of the class means",
    "nc2_equinorm": "relative spread of the lengths of the centred class means",
    "nc2_equiangularity": "spread of the cosines between them",
    "nc2_simplex": "mean distance of these cosines from the simplex's",
    "nc3": "squared distance between the classifier's weights and the centred class means, both "
    "scaled to length 1",
    "nc4": "share of images for which the classifier and the nearest class mean agree",
}
_COLLAPSE = "Neural collapse: nc1 to nc3 are 0 and nc4 is 1 when the features have collapsed."
# The feature that the classifier reads and that the distance is measured in.
_MAIN_FEATURE = "z"
_NOT_GEOMETRY = frozenset(
    ("loss", "accuracy", "validation_loss", "validation_accuracy", "learning_rate", "seconds")
)


def geometry_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """The measures of each variant's features: one table per feature and dataset."""
    by_key = {(r.method, r.dataset, r.metric): r.value for r in results}
    measures = list(dict.fromkeys(r.metric.rsplit("/", 1)[1] for r in results))
    defined = [f"{_column(m)}: {_DEFINITIONS[m]}" for m in measures if m in _DEFINITIONS]
    notes = (
        f"{'; '.join(defined)}.",
        _COLLAPSE,
        "n/a: not defined here, or the covariance is singular.",
    )
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
                    {"raw": "raw", "unit": "scaled to unit length"}[kind],
                )
                for kind in ("raw", "unit")
                for method, (title, _) in summary.titles.items()
            )
            title = f"Geometry of {feature} on {dataset} images: {summary.data}"
            columns = tuple(map(_column, measures))
            tables.append(Table(f"{feature}_{dataset}", title, columns, rows, notes))
    return tables


def _column(measure: str) -> str:
    return measure.replace("_", " ")


def geometry_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """Bars per variant, lines by epoch, and every number."""
    variants = {r.method for r in run.results}
    lead = _text("lead", variants=len(variants), data=run.summary.data)
    sections = [
        Section("After training", _bars(run)),
        Section("During training", _lines(run)),
        Section("Tables", tables),
    ]
    title = f"Geometry on {run.summary.data}"
    return Page(title, [Paragraph(lead, "lead"), _text("center_loss")], sections)


def split_metric(metric: str) -> tuple[str, str]:
    """The feature and the measure of a metric; the feature is empty where none is named.

    Example:
        >>> split_metric("z/raw/nc1"), split_metric("nc1")
        (('z raw', 'nc1'), ('', 'nc1'))
    """
    feature, _, measure = metric.rpartition("/")
    return feature.replace("/", " "), measure


def _bars(run: RunFolder) -> list[PageBlock]:
    features = dict.fromkeys(split_metric(r.metric)[0] for r in run.results)
    shown = [f for f in features if f.startswith(_MAIN_FEATURE)] or list(features)
    drawings = []
    for measure, title in _MEASURES.items():
        by_variant: dict[str, dict[str, float]] = {}
        for r in run.results:
            feature, name = split_metric(r.metric)
            if name == measure and r.dataset == "train" and feature in shown:
                by_variant.setdefault(run.label(r.method), {})[feature] = r.value
        if by_variant:
            values = "; ".join(
                f"{variant}: {', '.join(f'{f} {v:.3g}'.strip() for f, v in own.items())}"
                for variant, own in by_variant.items()
            )
            figure = measure_bars(title, by_variant)
            drawings.append(Drawing(f"geometry-{slug(measure)}", figure, f"{title}. {values}."))
    if not drawings:
        return [Paragraph("There are no measurements on training images.", "warn")]
    return [_text("bars", features=shown), drawings]


def _lines(run: RunFolder) -> list[PageBlock]:
    measured = dict.fromkeys(name for epoch in run.epochs for name in epoch.values)
    drawings = []
    for measure in (name for name in measured if name not in _NOT_GEOMETRY):
        by_variant: dict[str, list[tuple[int, float]]] = {}
        for epoch in run.epochs:
            if measure in epoch.values:
                points = by_variant.setdefault(run.label(epoch.variant), [])
                points.append((epoch.number, epoch.values[measure]))
        title = _MEASURES.get(split_metric(measure)[1], measure)
        ends = "; ".join(f"{n} ends at {points[-1][1]:.3g}" for n, points in by_variant.items())
        figure = measure_by_epoch(title, by_variant)
        drawings.append(Drawing(f"epochs-{slug(measure)}", figure, f"{title} by epoch: {ends}."))
    if not drawings:
        return [Paragraph("Nothing was measured between the epochs of these trainings.", "warn")]
    return [drawings]
