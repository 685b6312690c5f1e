"""Values by seed, their mean and their standard deviation."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from goen.report.figures.style import BLUE, INK, canvas, goen_style, label_rows, wrap_labels


@goen_style
def seed_points(title: str, quantity: str, by_row: Mapping[str, Sequence[float]]) -> Figure:
    """A line per row: a point per seed, a bar for the mean, a band of one standard deviation."""
    figure = canvas(max(0.45, wrap_labels(list(by_row))[1]) * len(by_row) + 1.1)
    ax = figure.subplots()
    for place, values in enumerate(by_row.values()):
        mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
        ax.plot([mean - spread, mean + spread], [place] * 2, color=BLUE, linewidth=9, alpha=0.3)
        ax.plot([mean] * 2, [place - 0.28, place + 0.28], color=BLUE, linewidth=2)
        ax.plot(values, [place] * len(values), "o", color=INK, markersize=4.5, alpha=0.75)
    label_rows(ax, list(by_row))
    ax.grid(axis="y", visible=False)
    # Numbers of four digits need their room.
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    ax.set(xlabel=f"{quantity}\ndot: a seed, bar: mean, band: ± sd")
    ax.set_title(title, loc="right")
    ax.xaxis.label.set_fontsize(8)
    return figure
