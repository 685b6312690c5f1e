"""Methods compared: intervals, and cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from goen.report.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    canvas,
    goen_style,
    label_rows,
    legend_entry,
    line_style,
    marker,
    wrap_labels,
)


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, of one method on one dataset; ``None`` if not measured."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    seen: bool = False


@goen_style
def forest(title: str, estimates: Sequence[Estimate], quantity: str = "AUROC") -> Figure:
    """A line per method: its value and its interval; hollow where calibrated with this kind."""
    labels = [e.label for e in estimates]
    figure = canvas(wrap_labels(labels)[1] * len(labels) + 1.1)
    ax = figure.subplots()
    shown = [e for e in estimates if e.value is not None]
    best = max((e.value for e in shown if e.value is not None), default=0.0)
    ax.axvline(best, color=GREY, linewidth=0.8, linestyle=":")
    for place, estimate in enumerate(estimates):
        if estimate.value is None:
            right = ax.get_yaxis_transform()
            ax.text(
                1,
                place,
                "not measured",
                transform=right,
                va="center",
                ha="right",
                color=GREY,
                fontsize=9,
            )
            continue
        colour = ORANGE if estimate.seen else BLUE
        if estimate.low is not None and estimate.high is not None:
            ax.plot([estimate.low, estimate.high], [place, place], color=colour, linewidth=2)
        fill = "white" if estimate.seen else colour
        mark = "s" if estimate.seen else "o"
        ax.plot(estimate.value, place, mark, color=colour, markerfacecolor=fill, markersize=6)
    label_rows(ax, labels)
    # A title longer than the axes would be cut at the edge of the figure.
    ax.set_title(title, loc="right")
    ax.set(xlabel=f"{quantity}; dotted: the best")
    return figure


@dataclass(frozen=True)
class Cost:
    """The cost of a method and its quality."""

    label: str
    kind: str
    seconds: float
    value: float


@goen_style
def cost_against(costs: Sequence[Cost], quantity: str) -> Figure:
    """Quality against seconds, a point per method; the names are in a column at the right."""
    figure = canvas(max(3.6, 0.24 * len(costs) + 1.2), 7.2)
    ax = figure.subplots()
    kinds = list(dict.fromkeys(cost.kind for cost in costs))
    by_value = sorted(costs, key=lambda cost: -cost.value)
    heights = np.linspace(0.98, 0.02, len(by_value)) if len(by_value) > 1 else np.array([0.5])
    ax.set_xscale("log")
    for cost, height in zip(by_value, heights, strict=True):
        number = kinds.index(cost.kind)
        colour = line_style(number)["color"]
        ax.plot(cost.seconds, cost.value, marker(number), color=colour, markersize=7)
        ax.annotate(
            cost.label,
            (cost.seconds, cost.value),
            xytext=(1.03, float(height)),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            color=colour if colour != ORANGE else "#8a5a00",
            arrowprops={"arrowstyle": "-", "color": "#cccccc", "linewidth": 0.7},
            annotation_clip=False,
        )
    ax.set(xlabel="seconds: training, fitting and scoring", ylabel=quantity)
    if any(kinds):
        entries = [legend_entry(kind, number) for number, kind in enumerate(kinds)]
        for entry in entries:
            entry.set_linestyle("none")
        figure.legend(handles=entries, loc="outside upper left", ncols=len(kinds))
    return figure
