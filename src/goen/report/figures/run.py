"""Figures of ``goen run``: the course of a training, reliability diagrams, the feature map."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from goen.metrics import ReliabilityBin
from goen.report.figures.style import (
    BLUE,
    COLOURS,
    FAINT,
    GREY,
    INK,
    canvas,
    epoch_axis,
    goen_style,
    in_legend,
    line_style,
    log_axis,
    marker,
    single_axes,
)


@goen_style
def training_curve(
    title: str, epochs: Sequence[int], training: Sequence[float], validation: Sequence[float]
) -> Figure:
    """Accuracy or loss by epoch, on training and on validation images."""
    figure, ax = single_axes(3.0)
    ax.plot(epochs, training, "--", color=GREY, label="training", linewidth=1.8)
    ax.plot(epochs, validation, color=BLUE, label="validation", linewidth=1.8)
    values = [*training, *validation]
    if min(values) > 0 and max(values) / min(values) > 20:
        log_axis(ax, "y")
    epoch_axis(ax)
    ax.set(title=title)
    ax.legend()
    return figure


Bins = Sequence[ReliabilityBin]


@goen_style
def classifier_reliability(bins: Bins, ece: float) -> Figure:
    """Accuracy against confidence in equally wide bins, and the number of images in each."""
    figure = canvas(4.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    left = [b.low for b in bins]
    widths = [b.high - b.low for b in bins]
    above.bar(left, [b.observed for b in bins], widths, align="edge", color=BLUE, edgecolor="white")
    above.plot([b.mean_predicted for b in bins], [b.observed for b in bins], "o", color="black")
    above.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    above.set(ylabel="accuracy", ylim=(0, 1.02), xlim=(0, 1))
    above.set_title(f"Classifier, ECE {ece:.4f}")
    below.bar(left, [b.count for b in bins], widths, align="edge", color=GREY, edgecolor=FAINT)
    below.set(xlabel="confidence in the predicted class", ylabel="images")
    return figure


@goen_style
def ood_reliability(by_set: Mapping[str, Bins]) -> Figure:
    """Share of OOD against the predicted probability; the larger a point, the more images."""
    figure, ax = single_axes(4.4)
    for number, (name, bins) in enumerate(by_set.items()):
        x, y = [b.mean_predicted for b in bins], [b.observed for b in bins]
        style = line_style(number)
        ax.plot(x, y, linewidth=1, **style)
        # The area of a point grows with the images in its bin: small bins are unreliable.
        sizes = [4 + 4 * b.count**0.5 for b in bins]
        ax.scatter(
            x,
            y,
            sizes,
            color=style["color"],
            marker=marker(number),
            label=in_legend(name),
            clip_on=False,
            zorder=3,
        )
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    ax.set(xlabel="predicted probability of OOD", ylabel="share that is OOD")
    ax.set(xlim=(0, 1), ylim=(0, 1.02), title="Probability of OOD; larger: more images")
    legend = figure.legend(loc="outside lower center", ncols=2)
    for handle in legend.legend_handles:
        handle.set_sizes([30])  # type: ignore[union-attr]
    return figure


@goen_style
def feature_map(
    points: Mapping[str, NDArray[Any]],
    means: NDArray[Any],
    classes: Sequence[str],
    share: NDArray[Any],
) -> Figure:
    """The points ``(n, 2)`` of each set in its own colour and marker; class names at the means.

    Args:
        points: by set; the first is ID.
        means: of the classes ``(C, 2)``.
        classes: their names.
        share: of the variance that each axis shows.
    """
    figure, ax = single_axes(4.8)
    for number, (name, where) in enumerate(points.items()):
        ax.scatter(
            where[:, 0],
            where[:, 1],
            s=12 if number else 16,
            color=COLOURS[(number - 1) % len(COLOURS)] if number else BLUE,
            marker=marker(number),
            alpha=0.55,
            linewidths=0,
            label=in_legend(name),
            rasterized=True,  # thousands of points are smaller as pixels than as shapes
        )
    for name, (x, y) in zip(classes, means, strict=True):
        text = ax.text(x, y, name, ha="center", va="center", fontsize=12, color=INK)
        text.set_path_effects([withStroke(linewidth=3, foreground="white")])
    ax.set(xlabel=f"first axis ({share[0]:.0%} of the ID variance)")
    ax.set(ylabel=f"second axis ({share[1]:.0%})", aspect="equal")
    figure.legend(loc="outside upper center", ncols=2, markerscale=1.6)
    return figure
