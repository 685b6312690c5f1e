"""The course of a training."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from goen.report.figures.style import BLUE, GREY, canvas, epoch_axis, goen_style, log_axis


@goen_style
def training_curve(
    title: str, epochs: Sequence[int], training: Sequence[float], validation: Sequence[float]
) -> Figure:
    """Accuracy or loss by epoch, on training and on validation images."""
    figure = canvas(3.0)
    ax = figure.subplots()
    ax.plot(epochs, training, "--", color=GREY, label="training", linewidth=1.8)
    ax.plot(epochs, validation, color=BLUE, label="validation", linewidth=1.8)
    values = [*training, *validation]
    if min(values) > 0 and max(values) / min(values) > 20:
        log_axis(ax, "y")
    epoch_axis(ax)
    ax.set(title=title)
    ax.legend()
    return figure
