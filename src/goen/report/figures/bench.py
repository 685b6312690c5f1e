"""Methods compared: intervals, ROC curves, scores, and values by seed."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from goen.io.results import Result
from goen.report.figures.scores import risk_coverage, roc
from goen.report.figures.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    goen_style,
    in_legend,
    label_rows,
    line_style,
    marker,
    single_axes,
    wrap_labels,
)

# One range for every figure, so that they can be compared; lower values are drawn at its edge.
_LOWEST = 0.4
_BINS = 60
# Characters in a line of a legend as wide as the figure.
_LEGEND = 54


@goen_style
def forest(
    title: str, methods: Sequence[tuple[str, int, Result | None]], kinds: Sequence[str]
) -> Figure:
    """A line per method: its AUROC and its interval; hollow where calibrated with this kind.

    Args:
        title: of the figure.
        methods: from top to bottom: label, number of the section, AUROC if it was measured.
        kinds: the names of the sections, by number, which gives colour and marker.
    """
    labels = [label for label, _, _ in methods]
    figure, ax = single_axes(wrap_labels(labels)[1] * len(labels) + 1.3)
    ax.axvline(0.5, color=GREY, linewidth=1, linestyle="--")
    for place, (_, kind, auroc) in enumerate(methods):
        _draw_estimate(ax, place, kind, auroc)
    label_rows(ax, labels)
    # A title longer than the axes would be cut at the edge of the figure.
    ax.set_title(title, loc="right")
    ax.set(xlabel="AUROC; dashed: a random score", xlim=(_LOWEST, 1.01))
    ax.set_xticks(np.linspace(_LOWEST, 1, 7))
    used = sorted({kind for _, kind, _ in methods})
    if len(used) > 1:
        entries = [
            Line2D(
                [], [], marker=marker(number), label=in_legend(kinds[number]), **line_style(number)
            )
            for number in used
        ]
        for entry in entries:
            entry.set_linestyle("none")
        figure.legend(handles=entries, loc="outside lower center", ncols=len(used))
    return figure


def _draw_estimate(ax: Axes, place: int, kind: int, auroc: Result | None) -> None:
    if auroc is None:
        right = ax.get_yaxis_transform()
        style: dict[str, Any] = {"va": "center", "color": GREY, "fontsize": 9}
        ax.text(1, place, "not measured", transform=right, ha="right", **style)
        return
    colour = line_style(kind)["color"]
    if auroc.value < _LOWEST:
        ax.plot(_LOWEST, place, "<", color=colour, markersize=7, clip_on=False)
        text = f"{auroc.value:.2f}"
        ax.text(_LOWEST + 0.02, place, text, va="center", color=INK, fontsize=9)
        return
    if auroc.low is not None and auroc.high is not None:
        ends = [max(auroc.low, _LOWEST), auroc.high]
        ax.plot(ends, [place, place], color=colour, linewidth=2)
    fill = "white" if auroc.seen_in_calibration else colour
    ax.plot(auroc.value, place, marker(kind), color=colour, markerfacecolor=fill, markersize=6)


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of one method on the ID images and on one OOD set.

    Attributes:
        label: of the method.
        kind: the number of its section, which gives its colour.
        id: scores of the ID images.
        ood: scores of the OOD images.
        legend: its ROC curve is drawn in colour, with this text; without one in grey.
    """

    label: str
    kind: int
    id: NDArray[Any]
    ood: NDArray[Any]
    legend: str = ""


@goen_style
def roc_by_kind(title: str, methods: Sequence[Scored]) -> Figure:
    """ROC curves: in colour those with a legend, in grey behind them all others."""
    legends = {m.legend: textwrap.wrap(m.legend, _LEGEND) for m in methods if m.legend}
    figure, ax = single_axes(4.9 + 0.15 * sum(len(lines) - 1 for lines in legends.values()))
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    for method in methods:
        alarms, found = roc(method.id, method.ood)
        if method.legend:
            style = line_style(method.kind)
            label = in_legend("\n".join(legends[method.legend]))
            ax.plot(alarms, found, label=label, linewidth=2, zorder=3, **style)
        else:
            ax.plot(alarms, found, color=PALE, linewidth=0.7)
    ax.set(xlabel="share of ID flagged; dashed: a random score", ylabel="share of OOD flagged")
    ax.set(xlim=(-0.01, 1), ylim=(0, 1.01))
    ax.set_title(f"ROC: {title}")
    figure.legend(loc="outside lower center", ncols=1)
    return figure


@goen_style
def risk_by_kind(methods: Sequence[Scored]) -> Figure:
    """Risk by coverage: in colour the methods with a legend, in grey behind them all others.

    Args:
        methods: with the scores of right answers as ``id`` and of wrong ones as ``ood``.
    """
    legends = {m.legend: textwrap.wrap(m.legend, _LEGEND) for m in methods if m.legend}
    figure, ax = single_axes(4.4 + 0.2 * sum(map(len, legends.values())))
    curves = [risk_coverage(method.id, method.ood) for method in methods]
    highest = max(risk[-1] for _, risk in curves)
    for method, (coverage, risk) in zip(methods, curves, strict=True):
        best = risk_coverage(np.zeros(len(method.id)), np.ones(len(method.ood)))
        ax.plot(*best, color=GREY, linewidth=1, linestyle="--")
        if method.legend:
            label = in_legend("\n".join(legends[method.legend]))
            ax.plot(coverage, risk, label=label, linewidth=2, zorder=3, **line_style(method.kind))
        else:
            ax.plot(coverage, risk, color=PALE, linewidth=0.7)
    ax.set(xlabel="share of ID images accepted", ylabel="share of errors among them")
    ax.set(xlim=(0, 1.01), ylim=(0, min(1.0, 1.25 * highest)), title="Risk by coverage")
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:.3g}")
    if legends:
        figure.legend(loc="outside lower center", ncols=1)
    return figure


@goen_style
def score_rows(title: str, methods: Sequence[Scored]) -> Figure:
    """A row per method: its scores of OOD images above a line, of ID images below it."""
    labels = [method.label for method in methods]
    figure, ax = single_axes(max(0.29, wrap_labels(labels)[1]) * len(labels) + 1.0)
    for place, method in enumerate(methods):
        edges = np.linspace(*_shown_range(method), _BINS + 1)
        for scores, colour, side in ((method.ood, ORANGE, -1), (method.id, BLUE, 1)):
            counts, _ = np.histogram(scores.clip(edges[0], edges[-1]), edges)
            heights = place + side * 0.45 * counts / counts.max()
            ax.stairs(
                heights, np.linspace(0, 1, _BINS + 1), baseline=place, fill=True, color=colour
            )
        ax.axhline(place, color=PALE, linewidth=0.6)
    label_rows(ax, labels)
    ax.grid(visible=False)
    ax.set(xlim=(0, 1), xticks=[])
    ax.set_xlabel("score, higher = more OOD →\norange: OOD images, blue: ID images")
    ax.set_title(f"Scores: {title}", loc="right")
    return figure


def _shown_range(method: Scored) -> tuple[float, float]:
    """Where nearly all scores are; a long tail, which would press the rest together, is cut off."""
    both = np.concatenate([method.id, method.ood]).astype(np.float64)
    least, p10, median, p90, most = np.quantile(
        both[np.isfinite(both)], [0.005, 0.1, 0.5, 0.9, 0.995]
    )
    low = max(least, median - 3 * (median - p10))
    high = min(most, median + 3 * (p90 - median))
    return (low, high) if high > low else (least, max(most, least + 1))


@goen_style
def seed_points(title: str, quantity: str, by_row: Mapping[str, Sequence[float]]) -> Figure:
    """A line per row: a point per seed, a bar for the mean, a band of one standard deviation."""
    figure, ax = single_axes(max(0.45, wrap_labels(list(by_row))[1]) * len(by_row) + 1.1)
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
