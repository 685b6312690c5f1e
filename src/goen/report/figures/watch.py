"""Figures of ``goen watch``: log e-values, p-values and share flagged over time, and images."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from goen.functional.ranking import Floats
from goen.report.figures.style import (
    BLUE,
    GREY,
    INK,
    RED,
    canvas,
    goen_style,
    in_legend,
    line_style,
    single_axes,
)

_MOST_POINTS = 600
_COLUMNS = 4
WIDE = 8.4
HIGHEST = 3.0
"""Of the log e-values that are drawn, in multiples of the line at which the alarm is raised."""


def _thinned(values: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Image numbers and values, the largest of each of at most 600 parts: no peak is lost."""
    each = -(-len(values) // _MOST_POINTS)
    starts = np.arange(0, len(values), each)
    return np.minimum(starts + each, len(values)), np.maximum.reduceat(values, starts)


def _image_axis(ax: Axes) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value):,}"))
    ax.set_xlabel("image")


@goen_style
def e_value_lines(
    log_e_value: Mapping[str, Floats], alarm_line: float, since: int | None, alarm_at: int | None
) -> Figure:
    """The log e-value of each stream, the line at which the alarm is raised, and the alarm.

    Values far above the line, or far below 0, are drawn at the edge.
    """
    figure, ax = single_axes(3.6, WIDE)
    lowest = max(min(float(values.min()) for values in log_e_value.values()), -10.0)
    highest = min(max(float(values.max()) for values in log_e_value.values()), HIGHEST * alarm_line)
    for number, (name, values) in enumerate(log_e_value.items()):
        images, thinned = _thinned(values)
        shown = np.clip(thinned, lowest, highest)
        ax.plot(images, shown, label=in_legend(name), linewidth=1.4, **line_style(number))
    ax.set_ylim(lowest - 0.5, max(1.25 * alarm_line, highest) + 0.3)
    ax.axhline(alarm_line, color=INK, linewidth=1.2)
    ax.annotate("alarm", (1, alarm_line), (-2, 3), xycoords=("axes fraction", "data"),
                textcoords="offset points", ha="right", fontsize=9)  # fmt: skip
    if since is not None and alarm_at is not None:
        ax.axvspan(since, alarm_at, color=RED, alpha=0.15, linewidth=0)
        ax.axvline(alarm_at, color=RED, linewidth=1)
    _image_axis(ax)
    ax.set(title="Log e-value of each stream", ylabel="log e-value")
    figure.legend(loc="outside lower center", ncols=min(len(log_e_value), 5))
    return figure


@goen_style
def p_value_map(title: str, shares: Floats, edges: Floats) -> Figure:
    """A column per window and a row per tenth of (0, 1): how many p-values, where 1 is uniform."""
    figure, ax = single_axes(2.6)
    bins = shares.shape[1]
    mesh = ax.pcolormesh(
        edges, np.linspace(0, 1, bins + 1), shares.T, cmap=colormaps["cividis"], vmin=0, vmax=3
    )
    bar = figure.colorbar(mesh, ax=ax, ticks=[0, 1, 2, 3])
    bar.ax.set_yticklabels(["0", "1", "2", "3 or more"])
    bar.set_label("times uniform", fontsize=9)
    _image_axis(ax)
    ax.grid(visible=False)
    ax.set(title=title, ylabel="p-value")
    return figure


@goen_style
def flagged_band(
    centres: Floats, share: Floats, low: Floats, high: Floats, since: int | None
) -> Figure:
    """The share flagged in each window, with its interval."""
    figure, ax = single_axes(2.6)
    if len(centres) == 1:  # a band of one window would have no width
        reach = [share - low, high - share]
        ax.errorbar(centres, share, reach, color=BLUE, marker="o", markersize=4, capsize=6)
        ax.set_xlim(0, 2 * float(centres[0]))
    else:
        ax.fill_between(centres, low, high, color=BLUE, alpha=0.2, linewidth=0)
        ax.plot(centres, share, color=BLUE, marker="o", markersize=3)
    if since is not None:
        ax.axvline(since, color=RED, linewidth=1, linestyle="--")
    _image_axis(ax)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    ax.set(title="Share flagged", ylim=(0, min(1.0, max(0.1, 1.1 * float(high.max())))))
    return figure


@goen_style
def image_grid(cards: Sequence[tuple[str, NDArray[np.uint8 | np.uint16] | None]]) -> Figure:
    """Images ``(3, H, W)`` with a title each; where one cannot be read, its title alone."""
    rows = -(-len(cards) // _COLUMNS)
    figure = canvas(1.45 * rows)
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, (title, pixels) in zip(axes, cards, strict=False):
        if pixels is None:
            gone = {"ha": "center", "va": "center", "color": GREY, "transform": ax.transAxes}
            ax.text(0.5, 0.5, "not there\nany more", **gone)
        else:
            ax.imshow(pixels.transpose(1, 2, 0), interpolation="nearest")
        ax.set_title(title, fontsize=9, loc="center")
    return figure
