"""The paper's summary figure of five panels."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from goen.report.figures.style import (
    BLUE,
    INK,
    ORANGE,
    canvas,
    empty_panel,
    epoch_axis,
    goen_style,
    label_rows,
    line_style,
    marker,
)

Line = Sequence[tuple[int, float]]
"""A value by epoch, counted from 1."""
Bars = Mapping[str, float]


@goen_style
def five_panels(
    training: Line, calibration: Line, ratios: Mapping[str, Line], ablation: Bars, seeds: Bars
) -> Figure:
    """Training, calibration, compactness, ablation, seeds; an empty panel names what it needs.

    Args:
        training: validation accuracy by epoch.
        calibration: the head's mean score of OOD minus that of ID images, by epoch.
        ratios: of the distances between and within classes, by variant and epoch.
        ablation: mean AUROC by variant.
        seeds: mean AUROC by seed.
    """
    figure = canvas(6.0, 10)
    (a, b, c), (d, e, spare) = figure.subplots(2, 3)
    spare.set_visible(False)
    _lines(a, {"": training}, "training.jsonl is missing")
    a.set(title="a  Training", ylabel="validation accuracy")
    _lines(b, {"": calibration}, "no head was calibrated,\nor its epochs were not kept")
    b.set(title="b  Calibration", ylabel="mean u(OOD) − mean u(ID)")
    _lines(c, ratios, "not measured during training:\nsee goen geometry")
    c.set(title="c  Compactness", ylabel="inter/intra class ratio")
    _bars(d, ablation, BLUE, "needs goen ablate:\n--beside ITS-FOLDER")
    d.set(title="d  Ablation")
    _bars(e, seeds, ORANGE, "needs goen seeds:\n--beside ITS-FOLDER")
    e.set(title="e  Seeds")
    return figure


def _lines(ax: Axes, lines: Mapping[str, Line], reason: str) -> None:
    drawn = {name: line for name, line in lines.items() if line}
    if not drawn:
        return empty_panel(ax, reason)
    for number, (name, line) in enumerate(drawn.items()):
        epochs, values = zip(*line, strict=True)
        few = marker(number) if len(epochs) < 30 else None
        ax.plot(epochs, values, marker=few, markersize=4, label=name, **line_style(number))
    epoch_axis(ax)
    if len(drawn) > 1:
        ax.legend(fontsize=7)
    return None


def _bars(ax: Axes, values: Bars, colour: str, reason: str) -> None:
    if not values:
        return empty_panel(ax, reason)
    heights = np.array(list(values.values()))
    ax.barh(range(len(heights)), heights, color=colour)
    for place, height in enumerate(heights):
        ink = "white" if colour == BLUE else INK
        ax.text(height, place, f"{height:.3f} ", va="center", ha="right", fontsize=8, color=ink)
    label_rows(ax, list(values))
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="mean AUROC over the OOD sets", xlim=(max(0.0, heights.min() - 0.1), 1))
    return None
