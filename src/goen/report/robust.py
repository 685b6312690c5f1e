"""The page of a study of corruption."""

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from goen.report.blocks import (
    Block,
    Drawing,
    Gallery,
    Numbers,
    Page,
    Section,
    Words,
    bold,
    listed,
    slug,
)
from goen.report.figures.robust import CROWDED, by_severity, severity_map
from goen.report.run_folder import RunFolder

_WORDS = {
    "accuracy": "accuracy",
    "ece": "ECE",
    "nll": "NLL",
    "brier": "Brier score",
    "flagged": "share flagged",
    "mean_score": "mean score",
}
Values = Mapping[str, Mapping[int, Sequence[float]]]


def robustness_page(run: RunFolder, beside: Sequence[RunFolder]) -> Page:
    """Every metric against severity, and maps of corruption by severity."""
    del beside
    sections = [
        Section("Against severity", _curves(run)),
        Section("Corruption by corruption", _maps(run)),
        Section("The numbers", list(map(Numbers, run.tables()))),
    ]
    return Page(f"Robustness on {run.summary['data']}", _summary(run), sections)


def place_of(dataset: str) -> tuple[str, int]:
    """The corruption and its severity; anything else is the set as it is, at severity 0.

    Example:
        >>> place_of("gaussian_noise-3"), place_of("clean")
        (('gaussian_noise', 3), ('clean', 0))
    """
    name, dash, severity = dataset.rpartition("-")
    return (name, int(severity)) if dash and severity.isdigit() else (dataset, 0)


def _summary(run: RunFolder) -> list[Block]:
    corruptions = {place_of(r.dataset)[0] for r in run.results if place_of(r.dataset)[1]}
    severities = sorted({place_of(r.dataset)[1] for r in run.results} - {0})
    worst = []
    for method in _methods(run):
        found = [r for r in run.results if (r.method, r.metric) == (method, "accuracy")]
        if found:
            low = min(found, key=lambda r: r.value)
            name, severity = place_of(low.dataset)
            words = "{} for {} ({}, severity {})"
            told = (bold(low.value, ".1%"), run.label(method), name.replace("_", " "), severity)
            worst.append(Markup(words).format(*told))
    lead = Markup(
        "The test images of {} under {} corruptions at severities {}. The lowest accuracy is {}."
    ).format(run.summary["data"], len(corruptions), ", ".join(map(str, severities)), listed(worst))
    words = (
        "A corrupted image still has its class: to flag it is neither right nor wrong in itself. "
        "Best is a gate that flags what the classifier gets wrong."
    )
    return [Words(lead, "lead"), Words(words)]


def _methods(run: RunFolder) -> list[str]:
    return list(dict.fromkeys(r.method for r in run.results))


def _values(run: RunFolder, metric: str) -> dict[str, dict[int, list[float]]]:
    """The values over corruptions, by method and severity; methods that never differ are one."""
    values: dict[str, dict[int, list[float]]] = {}
    for r in run.results:
        if r.metric == metric and np.isfinite(r.value):
            severity = place_of(r.dataset)[1]
            values.setdefault(run.label(r.method), {}).setdefault(severity, []).append(r.value)
    together: dict[str, dict[int, list[float]]] = {}
    for name, own in values.items():
        twin = next((other for other, theirs in together.items() if theirs == own), None)
        if twin is None:
            together[name] = own
        else:
            together = {f"{k}, {name}" if k == twin else k: v for k, v in together.items()}
    return {name: dict(sorted(own.items())) for name, own in together.items()}


def _curves(run: RunFolder) -> list[Block]:
    drawings = []
    for metric, words in _WORDS.items():
        values = _values(run, metric)
        # Scores of different methods have different units: each gets a picture of its own.
        parts = [{k: v} for k, v in values.items()] if metric == "mean_score" else [values]
        for part in parts:
            if part:
                title = f"{words}, {next(iter(part))}" if len(parts) > 1 else words
                drawings.append(_curve(metric, title, part))
    words = "Boxes: quartiles over corruptions, whiskers to 1.5 times that range. Lines: the means."
    return [Words(words), Gallery(tuple(drawings))]


def _curve(metric: str, title: str, values: Values) -> Drawing:
    told = "; ".join(
        f"{name}: {', '.join(f'{np.mean(v):.3g} at {s}' for s, v in own.items())}"
        for name, own in values.items()
    )
    figure = by_severity(title, values)
    alt = f"Mean {metric} by severity. {told}."
    return Drawing(f"severity-{slug(title)}", figure, alt, wide=len(values) >= CROWDED)


def _maps(run: RunFolder) -> list[Block]:
    places = [place_of(r.dataset) for r in run.results]
    corruptions = list(dict.fromkeys(name for name, severity in places if severity))
    severities = sorted({severity for _, severity in places} - {0})
    drawings = []
    for metric in ("accuracy", "flagged"):
        drawn: list[NDArray[np.float64]] = []
        for method in _methods(run):
            values = np.full((len(corruptions), len(severities)), np.nan)
            for row, column in np.ndindex(values.shape):
                dataset = f"{corruptions[row]}-{severities[column]}"
                found = run.by_key.get((method, dataset, metric))
                values[row, column] = np.nan if found is None else found.value
            # Methods behind one network share its accuracy.
            if any(np.array_equal(values, known, equal_nan=True) for known in drawn):
                continue
            drawn.append(values)
            title = f"{_WORDS[metric]}, {run.label(method)}"
            drawings.append(
                Drawing(
                    f"map-{metric}-{slug(method)}",
                    severity_map(title, corruptions, severities, values),
                    f"Map of {title}, by corruption and severity; every number is in "
                    "results.jsonl.",
                )
            )
    words = "Methods with the same numbers everywhere (one network's accuracy) are drawn once."
    return [Words(words), Gallery(tuple(drawings))]
