"""Methods against each other: intervals, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from goen.report.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    canvas,
    key,
    look,
    marker,
    name_rows,
    styled,
    wrapped,
)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, of one method on one set; ``None`` where none was measured."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    seen: bool = False


@styled
def forest(title: str, estimates: Sequence[Estimate], quantity: str = "AUROC") -> Figure:
    """A line per method: its number and the interval around it; hollow where the set was seen."""
    labels = [e.label for e in estimates]
    figure = canvas(wrapped(labels)[1] * len(labels) + 1.1)
    ax = figure.subplots()
    shown = [e for e in estimates if e.value is not None]
    best = max((e.value for e in shown if e.value is not None), default=0.0)
    ax.axvline(best, color=GREY, linewidth=0.8, linestyle=":")
    for place, estimate in enumerate(estimates):
        if estimate.value is None:
            text: dict[str, Any] = {"va": "center", "ha": "right", "color": GREY, "fontsize": 9}
            ax.text(1, place, "not measured", transform=ax.get_yaxis_transform(), **text)
            continue
        colour = ORANGE if estimate.seen else BLUE
        if estimate.low is not None and estimate.high is not None:
            ax.plot([estimate.low, estimate.high], [place, place], color=colour, linewidth=2)
        fill = "white" if estimate.seen else colour
        mark = "s" if estimate.seen else "o"
        ax.plot(estimate.value, place, mark, color=colour, markerfacecolor=fill, markersize=6)
    name_rows(ax, labels)
    # A title longer than the axes would be cut at the edge of the figure.
    ax.set_title(title, loc="right")
    ax.set(xlabel=f"{quantity}; dotted: the best")
    return figure


@dataclass(frozen=True)
class Cost:
    """What a method costs and what it gives."""

    label: str
    kind: str
    seconds: float
    value: float


@styled
def cost_against(costs: Sequence[Cost], quantity: str) -> Figure:
    """Seconds against quality, a point per method; the names stand in a column at the right."""
    figure = canvas(max(3.6, 0.24 * len(costs) + 1.2), 7.2)
    ax = figure.subplots()
    kinds = list(dict.fromkeys(cost.kind for cost in costs))
    by_value = sorted(costs, key=lambda cost: -cost.value)
    heights = np.linspace(0.98, 0.02, len(by_value)) if len(by_value) > 1 else np.array([0.5])
    ax.set_xscale("log")
    for cost, height in zip(by_value, heights, strict=True):
        number = kinds.index(cost.kind)
        colour = look(number)["color"]
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
        entries = [key(kind, number) for number, kind in enumerate(kinds)]
        for entry in entries:
            entry.set_linestyle("none")
        figure.legend(handles=entries, loc="outside upper left", ncols=len(kinds))
    return figure
