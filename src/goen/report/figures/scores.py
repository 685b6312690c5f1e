"""Distributions of scores, the share of each set that is flagged, ROC and precision-recall curves.

OOD is the positive class.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from goen.functional.ranking import tally
from goen.metrics import risk_coverage_curve
from goen.report.figures.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    canvas,
    goen_style,
    in_legend,
    line_style,
    single_axes,
)

Scores = Mapping[str, NDArray[Any]]
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
# Enough for a smooth line; the numbers come from the metrics, never from a thinned curve.
_POINTS = 400


@goen_style
def histograms(
    title: str, scores: Scores, threshold: float | None, quantity: str = "score"
) -> Figure:
    """A histogram per set, the first ID, with the threshold across all of them."""
    figure = canvas(0.85 * len(scores) + 0.9)
    axes = figure.subplots(len(scores), 1, sharex=True, squeeze=False)[:, 0]
    low, high = np.quantile(np.concatenate(list(scores.values())), [0.001, 0.999])
    bins = np.linspace(low, high if high > low else low + 1, 60)
    for number, (ax, (name, values)) in enumerate(zip(axes, scores.items(), strict=True)):
        colour = ORANGE if number else BLUE
        ax.hist(values.clip(low, high), bins, density=True, color=colour, histtype="stepfilled")
        ax.set_yticks([])
        ax.grid(visible=False)
        ax.spines["left"].set_visible(False)
        ax.set_title(name, fontsize=9, pad=2)
        if threshold is not None:
            ax.axvline(threshold, color=INK, linewidth=1, linestyle="--")
    dashed = "" if threshold is None else "; dashed: the threshold"
    axes[-1].set_xlabel(f"{quantity} (higher = more OOD){dashed}")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


@goen_style
def flagged_bars(
    shares: Mapping[str, float], rate: float, bands: Mapping[str, tuple[float, float]]
) -> Figure:
    """The share of each set that is flagged, the first ID, against the chosen false-alarm rate.

    Args:
        shares: by dataset.
        rate: the false-alarm rate.
        bands: the range over other trainings, where it is known.
    """
    figure, ax = single_axes(0.42 * len(shares) + 0.8)
    ax.barh(list(shares), list(shares.values()), color=[BLUE] + [ORANGE] * (len(shares) - 1))
    for place, share in enumerate(shares.values()):
        inside = share > 0.85
        where = share - 0.01 if inside else max(share, rate) + 0.015
        # Black on orange and white on blue stay readable in greyscale and on a dark page.
        colour = ("black" if place else "white") if inside else INK
        ha = "right" if inside else "left"
        ax.text(where, place, f"{share:.1%}", va="center", ha=ha, color=colour)
    for place, name in enumerate(shares):
        if name in bands:
            low, high = bands[name]
            ax.plot([low, high], [place + 0.32] * 2, color=GREY, linewidth=4)
            ax.plot([low, high], [place + 0.32] * 2, "|", color=GREY, markersize=8)
    ax.axvline(rate, color=INK, linestyle="--", linewidth=1)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    other = "\ngrey: from the least to the most of other trainings" if bands else ""
    label = f"share flagged\ndashed: the {100 * rate:.3g}% allowed of ID images{other}"
    ax.set(xlim=(0, 1), xlabel=label)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    return figure


def roc(id_scores: NDArray[Any], ood_scores: NDArray[Any]) -> Curve:
    """False-alarm rate and detection rate, threshold by threshold from the highest score down.

    Example:
        >>> alarms, found = roc(np.array([0.0, 2.0]), np.array([1.0, 3.0]))
        >>> alarms.tolist(), found.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    counts = tally(np.asarray(id_scores, np.float64), np.asarray(ood_scores, np.float64))
    found, alarms = counts.ood_first()
    return _thinned(alarms / counts.num_id, found / counts.num_ood)


def precision_recall(id_scores: NDArray[Any], ood_scores: NDArray[Any]) -> Curve:
    """Recall and precision, threshold by threshold from the highest score down.

    Example:
        >>> recall, precision = precision_recall(np.array([0.0, 2.0]), np.array([1.0, 3.0]))
        >>> recall.tolist(), precision.round(2).tolist()
        ([0.5, 0.5, 1.0, 1.0], [1.0, 0.5, 0.67, 0.5])
    """
    counts = tally(np.asarray(id_scores, np.float64), np.asarray(ood_scores, np.float64))
    found, alarms = (side[1:] for side in counts.ood_first())  # where something is flagged
    return _thinned(found / counts.num_ood, found / (found + alarms))


def risk_coverage(right: NDArray[Any], wrong: NDArray[Any]) -> Curve:
    """Coverages and the share of errors among the lowest scores, of right and wrong answers.

    Example:
        >>> coverage, risk = risk_coverage(np.array([0.0, 2.0]), np.array([1.0]))
        >>> coverage.round(2).tolist(), risk.round(2).tolist()
        ([0.33, 0.67, 1.0], [0.0, 0.5, 0.33])
    """
    scores = np.concatenate([right, wrong]).astype(np.float64)
    return _thinned(*risk_coverage_curve(scores, np.arange(len(scores)) >= len(right)))


def _thinned(x: NDArray[np.float64], y: NDArray[np.float64]) -> Curve:
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _POINTS)).round().astype(int))
    return x[kept], y[kept]


@goen_style
def roc_curves(
    name: str,
    labels: Mapping[str, str],
    id_scores: Scores,
    ood_scores: Scores,
    gate: tuple[float, float],
) -> Figure:
    """Detection rate against false-alarm rate of each method on one set.

    Args:
        name: of the set.
        labels: of the methods in the legend.
        id_scores: by method.
        ood_scores: the same.
        gate: the (false-alarm rate, detection rate) at the threshold.
    """
    figure, ax = single_axes(4.3)
    for number, (method, label) in enumerate(labels.items()):
        curve = roc(id_scores[method], ood_scores[method])
        ax.plot(*curve, label=in_legend(label), linewidth=1.8, **line_style(number))
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    ax.plot(*gate, "o", color=INK, markersize=7, label="the gate's threshold", clip_on=False)
    ax.set(xlabel="share of ID flagged", ylabel="share of OOD flagged", title=f"ROC: {name}")
    ax.set(xlim=(-0.01, 1), ylim=(0, 1.01))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@goen_style
def precision_recall_curves(
    name: str, labels: Mapping[str, str], id_scores: Scores, ood_scores: Scores
) -> Figure:
    """Precision against recall of each method on one set, with the prevalence as a line."""
    figure, ax = single_axes(4.3)
    for number, (method, label) in enumerate(labels.items()):
        curve = precision_recall(id_scores[method], ood_scores[method])
        ax.plot(*curve, label=in_legend(label), linewidth=1.8, **line_style(number))
    first = next(iter(labels))
    prevalence = prevalence_of(id_scores[first], ood_scores[first])
    ax.axhline(prevalence, color=GREY, linewidth=1, linestyle="--")
    ax.text(0.01, prevalence - 0.01, f"prevalence {prevalence:.1%}", va="top", fontsize=9)
    ax.set(xlabel="recall: share of OOD flagged", ylabel="precision: share of flagged that is OOD")
    ax.set(title=f"Precision and recall: {name}", xlim=(0, 1.01), ylim=(0, 1.01))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def prevalence_of(id_scores: NDArray[Any], ood_scores: NDArray[Any]) -> float:
    """The share of OOD in both together."""
    return len(ood_scores) / (len(id_scores) + len(ood_scores))
