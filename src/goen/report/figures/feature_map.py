"""The features on two principal axes."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from goen.report.figures.style import BLUE, COLOURS, INK, canvas, goen_style, marker


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
    figure = canvas(4.8)
    ax = figure.subplots()
    for number, (name, where) in enumerate(points.items()):
        ax.scatter(
            where[:, 0],
            where[:, 1],
            s=12 if number else 16,
            color=COLOURS[(number - 1) % len(COLOURS)] if number else BLUE,
            marker=marker(number),
            alpha=0.55,
            linewidths=0,
            label=name,
            rasterized=True,  # thousands of points are smaller as pixels than as shapes
        )
    for name, (x, y) in zip(classes, means, strict=True):
        text = ax.text(x, y, name, ha="center", va="center", fontsize=12, color=INK)
        text.set_path_effects([withStroke(linewidth=3, foreground="white")])
    ax.set(xlabel=f"first axis ({share[0]:.0%} of the ID variance)")
    ax.set(ylabel=f"second axis ({share[1]:.0%})", aspect="equal")
    figure.legend(loc="outside upper center", ncols=2, markerscale=1.6)
    return figure
