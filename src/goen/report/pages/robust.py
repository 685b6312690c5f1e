"""The report of ``goen robust``: corruptions by severity."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from goen.io.results import Result
from goen.report.blocks import Drawing, Page, Paragraph, Section
from goen.report.comparison import left_out_notes
from goen.report.figures.robust import CROWDED, severity_boxes, severity_map
from goen.report.run_folder import RunFolder
from goen.report.summary import Study, Summary
from goen.report.table import Cell, Row, Table
from goen.report.texts import bold, number_of, slug, text_of

_text = partial(text_of, "robust.html")
_CLEAN = "clean images: no corruption lowered it"
_METRICS = {
    "accuracy": "Accuracy",
    "ece": "ECE",
    "nll": "NLL",
    "brier": "Brier score",
    "aurc": "AURC",
    "mean_score": "Mean score",
    "flagged": "Share flagged",
}
_MEANINGS = {
    "accuracy": "The share of images classified correctly. Higher is better.",
    "ece": "Expected calibration error of the confidence, in bins of equal width{bins}. Lower is "
    "better.",
    "nll": "Mean negative log-likelihood of the label, in nats. Lower is better.",
    "brier": "Squared distance of the probabilities from the label, summed over classes: 0 to 2. "
    "Lower is better.",
    "aurc": "The mean share of errors among the images with the lowest scores, over all coverages. "
    "It depends on the accuracy. Lower is better.",
    "mean_score": "Mean OOD score, higher for more OOD. Each method has a scale of its own: only "
    "numbers of one row can be compared.",
    "flagged": "The share of images above the threshold, set on clean held-out images{rate}. A "
    "corrupted image still belongs to its class: neither high nor low is better in itself.",
}


def split_name(dataset: str) -> tuple[str, int]:
    """The corruption and its severity; any other name is a clean set, at severity 0.

    Example:
        >>> split_name("gaussian_noise-3"), split_name("clean")
        (('gaussian_noise', 3), ('clean', 0))
    """
    name, dash, severity = dataset.rpartition("-")
    return (name, int(severity)) if dash and severity.isdigit() else (dataset, 0)


def _corruptions(results: Sequence[Result]) -> tuple[list[str], list[int]]:
    """The corruptions in the order of the file, and the severities."""
    names = [split_name(r.dataset) for r in results]
    corruptions = list(dict.fromkeys(name for name, severity in names if severity))
    return corruptions, sorted({severity for _, severity in names} - {0})


def robust_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """Each metric by method and severity, the mean over corruptions; two metrics by corruption."""
    study = Study(results, summary)
    corruptions, severities = _corruptions(results)
    over_corruptions = f"mean over {number_of(len(corruptions), 'corruption')}"
    if len(corruptions) == 1:
        over_corruptions = corruptions[0].replace("_", " ")
    over = f"severity {severities[0]}" if len(severities) == 1 else "mean over severities"
    by_severity = [
        Table(
            metric,
            f"{title}: {study.where}, {over_corruptions}",
            ("clean", *(f"severity {severity}" for severity in severities)),
            tuple(
                Row(
                    label,
                    (
                        Cell(study.number(method, "clean", metric)),
                        *(_mean(study, method, metric, corruptions, [s]) for s in severities),
                    ),
                )
                for method, (label, _) in summary.titles.items()
            ),
            _notes(results, summary, metric),
        )
        for metric, title in _METRICS.items()
        if _is_everywhere(study, metric)
    ]
    by_corruption = [
        Table(
            f"{metric}_by_corruption",
            f"{_METRICS[metric]} by corruption: {study.where}, {over}",
            tuple(label for label, _ in summary.titles.values()),
            tuple(
                Row(c, tuple(_mean(study, m, metric, [c], severities) for m in summary.titles))
                for c in corruptions
            ),
            _notes(results, summary, metric),
        )
        for metric in ("accuracy", "flagged")
    ]
    return [*by_severity, *by_corruption]


def _is_everywhere(study: Study, metric: str) -> bool:
    """Whether the metric was measured on every set; there is no AURC where no answer is wrong."""
    sets = {(method, dataset) for method, dataset, _ in study.by_key}
    return all((*one, metric) in study.by_key for one in sets)


def _mean(
    study: Study, method: str, metric: str, corruptions: Sequence[str], severities: Sequence[int]
) -> Cell:
    """Over all pairs of a corruption and a severity."""
    datasets = [f"{name}-{severity}" for name in corruptions for severity in severities]
    return Cell(fmean(study.number(method, dataset, metric) for dataset in datasets))


def _notes(results: Sequence[Result], summary: Summary, metric: str) -> tuple[str, ...]:
    """What the metric means and on how many images it was measured, as far as recorded."""
    counts = {
        r.metric: f"{r.value:,.0f}" for r in results if r.metric in ("num_samples", "num_bins")
    }
    rate = summary.config.get("false_alarm_rate")
    meaning = _MEANINGS[metric].format(
        bins=f" ({counts['num_bins']})" if "num_bins" in counts else "",
        rate=f" for a false-alarm rate of {100 * rate:g} %" if isinstance(rate, float) else "",
    )
    images = [f"{counts['num_samples']} test images."] if "num_samples" in counts else []
    return (" ".join([meaning, *images]), *left_out_notes(summary))


def robust_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """Every metric by severity, and maps of corruption by severity."""
    corruptions, severities = _corruptions(run.results)
    lead = _text(
        "lead",
        data=run.summary.data,
        corruptions=corruptions,
        severities=severities,
        lowest=[low for method in _methods(run) for low in _lowest(run, method)],
    )
    drawings = _severity_figures(run)
    sections = [
        Section("By severity", [_text("by_severity", corruptions=corruptions), drawings]),
        Section("By corruption", [_text("by_corruption"), _maps(run, corruptions, severities)]),
        Section("Tables", tables),
    ]
    title = f"Robustness on {run.summary.data}"
    return Page(title, [Paragraph(lead, "lead"), _text("errors")], sections)


def _lowest(run: RunFolder, method: str) -> list[str]:
    """The method's lowest accuracy, and where."""
    found = [r for r in run.results if (r.method, r.metric) == (method, "accuracy")]
    if not found:
        return []
    low = min(found, key=lambda r: r.value)
    name, severity = split_name(low.dataset)
    where = f"{name.replace('_', ' ')}, severity {severity}" if severity else _CLEAN
    return [bold(low.value, ".1%") + f" for {run.label(method)} ({where})"]


def _methods(run: RunFolder) -> list[str]:
    return list(dict.fromkeys(r.method for r in run.results))


def _values(run: RunFolder, metric: str) -> dict[str, dict[int, list[float]]]:
    """The values over corruptions by method and severity; methods with equal values are joined."""
    values: dict[str, dict[int, list[float]]] = {}
    for r in run.results:
        if r.metric == metric and np.isfinite(r.value):
            severity = split_name(r.dataset)[1]
            values.setdefault(run.label(r.method), {}).setdefault(severity, []).append(r.value)
    joined: dict[str, dict[int, list[float]]] = {}
    for name, own in values.items():
        twin = next((other for other, theirs in joined.items() if theirs == own), None)
        if twin is None:
            joined[name] = own
        else:
            joined = {f"{k}; {name}" if k == twin else k: v for k, v in joined.items()}
    return {name: dict(sorted(own.items())) for name, own in joined.items()}


def _severity_figures(run: RunFolder) -> list[Drawing]:
    drawings = []
    for metric, title in _METRICS.items():
        values = _values(run, metric)
        # Scores of different methods have different units: each gets a figure of its own.
        parts = [{k: v} for k, v in values.items()] if metric == "mean_score" else [values]
        for part in parts:
            if part:
                whole = f"{title}, {next(iter(part))}" if len(parts) > 1 else title
                drawings.append(_severity_figure(metric, whole, part))
    return drawings


def _severity_figure(
    metric: str, title: str, values: Mapping[str, Mapping[int, Sequence[float]]]
) -> Drawing:
    means = "; ".join(
        f"{name}: {', '.join(f'{np.mean(v):.3g} at {s}' for s, v in own.items())}"
        for name, own in values.items()
    )
    figure = severity_boxes(title, values)
    alt = f"Mean {metric} by severity. {means}."
    return Drawing(f"severity-{slug(title)}", figure, alt, wide=len(values) >= CROWDED)


def _maps(run: RunFolder, corruptions: Sequence[str], severities: Sequence[int]) -> list[Drawing]:
    drawings = []
    for metric in ("accuracy", "flagged"):
        drawn: list[NDArray[np.float64]] = []
        for method in _methods(run):
            values = np.full((len(corruptions), len(severities)), np.nan)
            for row, column in np.ndindex(values.shape):
                dataset = f"{corruptions[row]}-{severities[column]}"
                found = run.by_key.get((method, dataset, metric))
                values[row, column] = np.nan if found is None else found.value
            # Methods that use the same network share its accuracy.
            if any(np.array_equal(values, other, equal_nan=True) for other in drawn):
                continue
            drawn.append(values)
            title = f"{_METRICS[metric]}, {run.label(method)}"
            drawings.append(
                Drawing(
                    f"map-{metric}-{slug(method)}",
                    severity_map(title, corruptions, severities, values),
                    f"Map of {title}, by corruption and severity; every number is in "
                    "results.jsonl.",
                )
            )
    return drawings
