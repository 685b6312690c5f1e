"""ROC and precision-recall curves, OOD being the positive class."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from goen.functional.ranking import tally
from goen.report.figures.style import GREY, INK, goen_style, line_style, single_axes

ByMethod = Mapping[str, NDArray[Any]]
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
# Enough for a smooth line; the numbers come from the metrics, never from a thinned curve.
_POINTS = 400


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


def _thinned(x: NDArray[np.float64], y: NDArray[np.float64]) -> Curve:
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _POINTS)).round().astype(int))
    return x[kept], y[kept]


@goen_style
def roc_curves(
    name: str, id_scores: ByMethod, ood_scores: ByMethod, gate: tuple[float, float] | None = None
) -> Figure:
    """Detection rate against false-alarm rate of each method on one set.

    Args:
        name: of the set.
        id_scores: by the method's label in the legend.
        ood_scores: the same.
        gate: the (false-alarm rate, detection rate) at the threshold.
    """
    figure, ax = single_axes(4.3)
    for number, method in enumerate(id_scores):
        curve = roc(id_scores[method], ood_scores[method])
        ax.plot(*curve, label=method, linewidth=1.8, **line_style(number))
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    if gate is not None:
        ax.plot(*gate, "o", color=INK, markersize=7, label="the gate's threshold", clip_on=False)
    ax.set(xlabel="share of ID flagged", ylabel="share of OOD flagged", title=f"ROC: {name}")
    ax.set(xlim=(-0.01, 1), ylim=(0, 1.01))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@goen_style
def precision_recall_curves(name: str, id_scores: ByMethod, ood_scores: ByMethod) -> Figure:
    """Precision against recall of each method on one set, with the prevalence as a line."""
    figure, ax = single_axes(4.3)
    for number, method in enumerate(id_scores):
        curve = precision_recall(id_scores[method], ood_scores[method])
        ax.plot(*curve, label=method, linewidth=1.8, **line_style(number))
    first = next(iter(id_scores))
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
