"""Pictures of a run as SVG: readable in print, on a phone and by the colour-blind."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Okabe and Ito's palette, which the colour-blind can tell apart; line styles say it again.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#6b6b6b",
)
COLOURS = (ORANGE, GREEN, RED, PURPLE, SKY, "#F0E442", GREY)
STYLES = ("-", "--", "-.", ":")
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "axes.axisbelow": True,
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "goen",
    "legend.frameon": False,
}
Scores = Mapping[str, NDArray[Any]]


def histograms(title: str, scores: Scores, threshold: float | None) -> str:
    """The scores of each set above one another, with the threshold through all of them."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 0.9 * len(scores) + 1), layout="constrained")
        axes = figure.subplots(len(scores), 1, sharex=True, squeeze=False)[:, 0]
        everything = np.concatenate(list(scores.values()))
        low, high = np.quantile(everything, [0.001, 0.999])
        bins = np.linspace(low, high, 80)
        for number, (ax, (name, values)) in enumerate(zip(axes, scores.items(), strict=True)):
            colour = BLUE if number == 0 else COLOURS[(number - 1) % len(COLOURS)]
            ax.hist(values.clip(low, high), bins, density=True, color=colour)
            ax.set_yticks([])
            ax.grid(visible=False)
            ax.spines["left"].set_visible(False)
            ax.set_ylabel(name, rotation=0, ha="right", va="center")
            if threshold is not None:
                ax.axvline(threshold, color="black", linewidth=1, linestyle="--")
        axes[-1].set_xlabel("score (higher = more OOD); dashed: the threshold")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        return _svg(figure)


def roc_curves(name: str, id_scores: Scores, ood_scores: Scores) -> str:
    """Detection rate against false-alarm rate of each method on one set."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4, 3.6), layout="constrained")
        ax = figure.subplots()
        for number, method in enumerate(id_scores):
            false_alarms, detections = _roc(id_scores[method], ood_scores[method])
            style = STYLES[number % len(STYLES)]
            colour = (BLUE, *COLOURS)[number % 8]
            ax.plot(false_alarms, detections, style, color=colour, label=method, linewidth=1.8)
        ax.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
        ax.set(xlabel="ID flagged", ylabel="OOD flagged", title=name, xlim=(0, 1), ylim=(0, 1.01))
        ax.legend(loc="lower right", fontsize=8)
        return _svg(figure)


def training_curves(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy and loss by epoch."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 2.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        epochs = [row["epoch"] + 1 for row in rows]
        left.plot(epochs, [row["accuracy"] for row in rows], "--", color=GREY, label="training")
        left.plot(
            epochs, [row["validation_accuracy"] for row in rows], color=BLUE, label="validation"
        )
        left.set(xlabel="epoch", ylabel="accuracy")
        right.plot(
            epochs, [row["loss"] for row in rows], "--", color=GREY, label="training (smoothed)"
        )
        right.plot(epochs, [row["validation_loss"] for row in rows], color=BLUE, label="validation")
        right.set(xlabel="epoch", ylabel="loss")
        for ax in (left, right):
            ax.legend(fontsize=8)
        return _svg(figure)


def flagged_bars(shares: Mapping[str, float], rate: float) -> str:
    """How much of each set is flagged, against the false-alarm rate that was asked for."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 0.38 * len(shares) + 0.9), layout="constrained")
        ax = figure.subplots()
        names = list(shares)
        colours = [BLUE if name == names[0] else ORANGE for name in names]
        ax.barh(names, list(shares.values()), color=colours)
        for place, share in enumerate(shares.values()):
            inside = share > 0.9
            where, colour = (
                (share - 0.01, "white") if inside else (max(share, rate) + 0.01, "black")
            )
            ha = "right" if inside else "left"
            ax.text(where, place, f"{share:.1%}", va="center", ha=ha, color=colour, fontsize=9)
        ax.axvline(rate, color="black", linestyle="--", linewidth=1)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set(xlim=(0, 1), xlabel=f"share flagged; dashed: the {rate:.0%} allowed of ID images")
        return _svg(figure)


def _roc(id_scores: NDArray[Any], ood_scores: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most a few hundred points: a curve for the eye, the numbers come from the metrics."""
    thresholds = np.quantile(np.concatenate([id_scores, ood_scores]), np.linspace(1, 0, 400))
    id_sorted, ood_sorted = np.sort(id_scores), np.sort(ood_scores)
    false_alarms = 1 - np.searchsorted(id_sorted, thresholds, side="left") / len(id_sorted)
    detections = 1 - np.searchsorted(ood_sorted, thresholds, side="left") / len(ood_sorted)
    return np.r_[0, false_alarms, 1], np.r_[0, detections, 1]


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
