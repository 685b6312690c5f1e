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


_QUANTITIES = {
    "training": "validation accuracy",
    "calibration": "mean u(OOD) − mean u(ID)",
    "compactness": "inter/intra class ratio",
}


@goen_style
def five_panels(lines: Mapping[str, Mapping[str, Line]], bars: Mapping[str, Bars]) -> Figure:
    """Training, calibration, compactness, ablation, seeds; a panel without data is left out.

    Args:
        lines: by panel (training, calibration, compactness), those of each variant.
        bars: by panel (ablation, seeds), the mean AUROC over unseen sets of each variant or seed.
    """
    letters = dict(zip([*lines, *bars], "abcde", strict=True))
    panels = [name for name, panel in {**lines, **bars}.items() if panel]
    columns, rows = min(3, len(panels)), math.ceil(len(panels) / 3)
    figure = canvas(3.0 * rows, 10 * columns / 3)
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for name, ax in zip(panels, axes, strict=False):
        if name in lines:
            draw_epochs(ax, lines[name])
            ax.set(ylabel=_QUANTITIES[name])
            if len(lines[name]) > 1:
                ax.legend(fontsize=7)
        else:
            _bars(ax, bars[name])
        ax.set(title=f"{letters[name]}  {name.capitalize()}")
    for spare in axes[len(panels) :]:
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
