"""The paper's summary figure of five panels."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from goen.report.figures.style import GREEN, canvas, draw_epochs, goen_style, label_rows

Line = Sequence[tuple[int, float]]
"""A value by epoch, counted from 1."""
Bars = Mapping[str, float]


@goen_style
def five_panels(
    training: Line, calibration: Line, ratios: Mapping[str, Line], ablation: Bars, seeds: Bars
) -> Figure:
    """Training, calibration, compactness, ablation, seeds; a panel without data is left out.

    Args:
        training: validation accuracy by epoch.
        calibration: the head's mean score of OOD minus that of ID images, by epoch.
        ratios: of the distances between and within classes, by variant and epoch.
        ablation: mean AUROC over unseen sets by variant.
        seeds: mean AUROC over unseen sets by seed.
    """
    lines: dict[str, tuple[Mapping[str, Line], str]] = {
        "a  Training": ({"": training}, "validation accuracy"),
        "b  Calibration": ({"": calibration}, "mean u(OOD) − mean u(ID)"),
        "c  Compactness": (ratios, "inter/intra class ratio"),
    }
    drawn = {title: panel for title, panel in lines.items() if any(panel[0].values())}
    bars = {title: b for title, b in (("d  Ablation", ablation), ("e  Seeds", seeds)) if b}
    columns = min(3, len(drawn) + len(bars))
    rows = math.ceil((len(drawn) + len(bars)) / 3)
    figure = canvas(3.0 * rows, 10 * columns / 3)
    axes = iter(figure.subplots(rows, columns, squeeze=False).flat)
    for (title, (panel, quantity)), ax in zip(drawn.items(), axes, strict=False):
        draw_epochs(ax, panel)
        if len(panel) > 1:
            ax.legend(fontsize=7)
        ax.set(title=title, ylabel=quantity)
    for (title, values), ax in zip(bars.items(), axes, strict=False):
        _bars(ax, values)
        ax.set(title=title)
    for spare in axes:
        spare.set_visible(False)
    return figure


def _bars(ax: Axes, values: Bars) -> None:
    heights = np.array(list(values.values()))
    ax.barh(range(len(heights)), heights, color=GREEN)
    for place, height in enumerate(heights):
        ax.text(height, place, f"{height:.3f} ", va="center", ha="right", fontsize=8, color="black")
    label_rows(ax, list(values))
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="mean AUROC, unseen OOD sets", xlim=(max(0.0, heights.min() - 0.1), 1))
