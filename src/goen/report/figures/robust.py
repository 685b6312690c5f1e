"""Corruptions by severity: boxes over corruptions, and a map of every pair."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray

from goen.escaping import drawable
from goen.report.figures.style import WIDTH, goen_style, in_legend, line_style, marker, single_axes

# The number of methods whose boxes need more than a phone's width.
CROWDED = 4
BySeverity = Mapping[int, Sequence[float]]


@goen_style
def severity_boxes(title: str, methods: Mapping[str, BySeverity]) -> Figure:
    """A line through each method's means and, at each severity, a box over the corruptions.

    Args:
        title: of the figure: the metric.
        methods: the values over corruptions by severity; severity 0 is the clean set.
    """
    figure, ax = single_axes(3.6, WIDTH if len(methods) < CROWDED else 1.5 * WIDTH)
    severities = sorted({s for values in methods.values() for s in values})
    width = 0.8 / len(methods)
    has_boxes = any(len(v) > 1 for values in methods.values() for v in values.values())
    step = width if has_boxes else 0.0  # boxes side by side; points where they belong
    for number, (name, values) in enumerate(methods.items()):
        style = line_style(number)
        places = [s + (number - (len(methods) - 1) / 2) * step for s in values]
        means = [float(np.mean(values[s])) for s in values]
        ax.plot(places, means, marker=marker(number), markersize=4, label=in_legend(name), **style)
        boxed = [(p, values[s]) for p, s in zip(places, values, strict=True) if len(values[s]) > 1]
        if boxed:
            parts = ax.boxplot(
                [list(v) for _, v in boxed],
                positions=[p for p, _ in boxed],
                widths=width * 0.8,
                manage_ticks=False,
                patch_artist=True,
                flierprops={"markersize": 2.5, "markeredgecolor": style["color"]},
                medianprops={"color": "black"},
            )
            for box in parts["boxes"]:
                box.set(facecolor=to_rgba(style["color"], 0.25), edgecolor=style["color"])
            for line in (*parts["whiskers"], *parts["caps"]):
                line.set(color=style["color"])
    ax.set_xticks(severities, ["clean" if s == 0 else str(s) for s in severities])
    ax.set(xlabel="severity", title=title)
    ax.grid(axis="x", visible=False)
    if len(methods) > 1:
        columns = 1 if max(map(len, methods)) > 25 else 2  # long names side by side are cut off
        figure.legend(loc="outside lower center", ncols=columns)
    return figure


@goen_style
def severity_map(
    title: str, corruptions: Sequence[str], severities: Sequence[int], values: NDArray[np.float64]
) -> Figure:
    """A cell per corruption and severity, its number in it; NaN is shown as n/a."""
    figure, ax = single_axes(0.3 * len(corruptions) + 1.0)
    palette = colormaps["cividis"]
    ax.imshow(np.ma.masked_invalid(values), cmap=palette, vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(values.shape):
        value = values[row, column]
        # Cividis grows lighter with the value: black text on light cells, white text on dark ones.
        ink = "black" if not value < 0.55 else "white"
        text = "n/a" if np.isnan(value) else f"{value:.1%}"
        ax.text(column, row, text, ha="center", va="center", color=ink, fontsize=9)
    ax.set_xticks(range(len(severities)), [str(s) for s in severities])
    ax.set_yticks(
        range(len(corruptions)), [drawable(name.replace("_", " ")) for name in corruptions]
    )
    ax.grid(visible=False)
    ax.set(xlabel="severity")
    ax.set_title(title, loc="right")
    return figure
