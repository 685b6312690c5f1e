"""Distributions of scores, and the share of each set that is flagged."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from goen.report.figures.style import BLUE, GREY, INK, ORANGE, canvas, goen_style, single_axes

BySet = Mapping[str, NDArray[Any]]


@goen_style
def histograms(
    title: str, scores: BySet, threshold: float | None, quantity: str = "score"
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
    label = f"share flagged; dashed: the {100 * rate:.3g}% allowed of ID images{other}"
    ax.set(xlim=(0, 1), xlabel=label)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    return figure
