"""How the network learnt, epoch by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from goen.report.figures.style import BLUE, GREY, by_epoch, canvas, styled

Story = Sequence[Mapping[str, Any]]


@styled
def training_curve(story: Story, quantity: str, words: str) -> Figure:
    """Accuracy or loss by epoch, on training and on validation images."""
    figure = canvas(3.0)
    ax = figure.subplots()
    epochs = [row["epoch"] + 1 for row in story]
    training = [row[quantity] for row in story]
    validation = [row[f"validation_{quantity}"] for row in story]
    ax.plot(epochs, training, "--", color=GREY, label="training", linewidth=1.8)
    ax.plot(epochs, validation, color=BLUE, label="validation", linewidth=1.8)
    values = training + validation
    if min(values) > 0 and max(values) / min(values) > 20:
        ax.set_yscale("log")
    by_epoch(ax)
    ax.set(title=words)
    ax.legend()
    return figure
