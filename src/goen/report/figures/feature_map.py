"""The features as a map: two principal axes of the unit sphere."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from goen.report.figures.style import COLOURS, INK, canvas, marker, styled


@styled
def feature_map(
    points: Mapping[str, NDArray[Any]],
    means: NDArray[Any],
    classes: Sequence[str],
    share: NDArray[Any],
) -> Figure:
    """Every set's points ``(n, 2)`` in its colour and marker; a class's name stands at its mean.

    Args:
        points: by set; the first is ID.
        means: of the classes ``(C, 2)``.
        classes: their names.
        share: of the variance that each axis shows.
    """
    figure = canvas(4.8)
    ax = figure.subplots()
    for number, (name, where) in enumerate(points.items()):
        look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": marker(number)}
        size = 12 if number else 16
        # Thousands of points weigh less as pixels than as shapes.
        look |= {"s": size, "alpha": 0.55, "linewidths": 0, "label": name}
        ax.scatter(where[:, 0], where[:, 1], rasterized=True, **look)
    for name, (x, y) in zip(classes, means, strict=True):
        text = ax.text(x, y, name, ha="center", va="center", fontsize=12, color=INK)
        text.set_path_effects([withStroke(linewidth=3, foreground="white")])
    ax.set(xlabel=f"first axis ({share[0]:.0%} of the ID variance)")
    ax.set(ylabel=f"second axis ({share[1]:.0%})", aspect="equal")
    figure.legend(loc="outside upper center", ncols=2, markerscale=1.6)
    return figure
