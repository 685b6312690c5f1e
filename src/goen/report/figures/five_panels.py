"""The paper's figure of five panels, from whatever studies there are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from goen.report.figures.style import (
    BLUE,
    INK,
    ORANGE,
    absent,
    by_epoch,
    canvas,
    look,
    marker,
    name_rows,
    styled,
)

Story = Sequence[Mapping[str, Any]]
Bars = Mapping[str, float]


@styled
def five_panels(
    story: Story, head_story: Story, ratios: Mapping[str, Story], ablation: Bars, seeds: Bars
) -> Figure:
    """Training, calibration, compactness, ablation, seeds. What is empty says how to get it.

    Args:
        story: of the training, an epoch per row.
        head_story: of the calibration: ``epoch`` and ``gap``.
        ratios: by variant, rows with ``epoch`` and ``inter_intra_ratio``.
        ablation: mean AUROC by variant.
        seeds: mean AUROC by seed.
    """
    figure = canvas(6.0, 10)
    (a, b, c), (d, e, spare) = figure.subplots(2, 3)
    spare.set_visible(False)
    _lines(a, {"": story}, "validation_accuracy", "goen run trains")
    a.set(title="a  Training", ylabel="validation accuracy")
    _lines(b, {"": head_story}, "gap", "no head was calibrated,\nor its epochs were not kept")
    b.set(title="b  Calibration", ylabel="mean u(OOD) − mean u(ID)")
    _lines(c, ratios, "inter_intra_ratio", "not measured during training:\nsee goen geometry")
    c.set(title="c  Compactness", ylabel="inter/intra class ratio")
    _bars(d, ablation, BLUE, "needs goen ablate:\n--beside ITS-FOLDER")
    d.set(title="d  Ablation")
    _bars(e, seeds, ORANGE, "needs goen seeds:\n--beside ITS-FOLDER")
    e.set(title="e  Seeds")
    return figure


def _lines(ax: Axes, stories: Mapping[str, Story], quantity: str, otherwise: str) -> None:
    told = {
        name: [row for row in story if row.get(quantity) is not None]
        for name, story in stories.items()
    }
    told = {name: story for name, story in told.items() if story}
    if not told:
        return absent(ax, otherwise)
    for number, (name, story) in enumerate(told.items()):
        epochs = [row["epoch"] + 1 for row in story]
        values = [row[quantity] for row in story]
        few = marker(number) if len(epochs) < 30 else None
        ax.plot(epochs, values, marker=few, markersize=4, label=name, **look(number))
    by_epoch(ax)
    if len(told) > 1:
        ax.legend(fontsize=7)
    return None


def _bars(ax: Axes, values: Bars, colour: str, otherwise: str) -> None:
    if not values:
        return absent(ax, otherwise)
    heights = np.array(list(values.values()))
    ax.barh(range(len(heights)), heights, color=colour)
    for place, height in enumerate(heights):
        ink = "white" if colour == BLUE else INK
        ax.text(height, place, f"{height:.3f} ", va="center", ha="right", fontsize=8, color=ink)
    name_rows(ax, list(values))
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="mean AUROC over the OOD sets", xlim=(max(0.0, heights.min() - 0.1), 1))
    return None
