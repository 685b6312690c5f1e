"""Reliability diagrams: predicted against observed frequencies."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from goen.metrics import ReliabilityBin
from goen.report.figures.style import BLUE, FAINT, GREY, canvas, goen_style, line_style, marker

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
    figure = canvas(4.4)
    ax = figure.subplots()
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
            label=name,
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
