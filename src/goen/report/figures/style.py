"""How every figure looks: colours the colour-blind can tell apart, sizes a phone can show."""

import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's palette, which the colour-blind can tell apart; markers and dashes say it again.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9",
)  # fmt: skip
GREY, INK, FAINT = "#6b6b6b", "#1a1a1a", "#e8e8e8"
COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")

# A phone shows a figure of this width, in inches, at three quarters of its size.
WIDTH = 4.8
FORMS = ("svg", "png", "pdf")
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "text.color": INK,
    "font.size": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "goen",
    "pdf.fonttype": 42,
}
P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """The drawing function, in goen's style, its layout settled."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(_STYLE):
            figure = draw(*args, **kwargs)
            # Once, rather than again for every form it is saved in.
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            return figure

    return drawn


def canvas(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of this size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def look(number: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number; no two of the first 28 are alike."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(number + number // len(COLOURS)) % len(DASHES)],
    }


def marker(number: int) -> str:
    """The marker of the series with this number."""
    return MARKERS[number % len(MARKERS)]


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write the figure as SVG, PNG and PDF; the SVG comes back. The same bytes every time."""
    nameless: dict[str, dict[str, Any]] = {
        "svg": {"Date": None},
        "png": {"Software": None},
        "pdf": {"CreationDate": None},
    }
    with mpl.rc_context(_STYLE):
        for form in FORMS:
            path = folder / f"{name}.{form}"
            figure.savefig(path, format=form, dpi=150, metadata=nameless[form])
    return (folder / f"{name}.svg").read_text(encoding="utf-8")


def wrapped(labels: Sequence[str]) -> tuple[list[str], float]:
    """The labels in lines short enough to leave room for the picture, and the inches a row needs.

    Example:
        >>> wrapped(["KNN", "concatenation as in the figure, with CenterLoss"])
        (['KNN', 'concatenation as in the\\nfigure, with CenterLoss'], 0.34)
    """
    lines = [textwrap.wrap(label, 26, max_lines=3, placeholder=" …") or [""] for label in labels]
    most = max(map(len, lines), default=1)
    return ["\n".join(parts) for parts in lines], max(0.27, 0.17 * most)


def name_rows(ax: Axes, labels: Sequence[str]) -> None:
    """Rows from the top down, each with its label at the left."""
    ax.set_yticks(range(len(labels)), wrapped(labels)[0], fontsize=9)
    ax.set_ylim(len(labels) - 0.4, -0.6)


def by_epoch(ax: Axes) -> None:
    """Epochs along the x axis: whole ones."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("epoch")


def absent(ax: Axes, words: str) -> None:
    """An empty panel that says why it is empty."""
    ax.set_xticks([])
    ax.set_yticks([])
    for side in ax.spines.values():
        side.set_visible(True)
        side.set_color("#bbbbbb")
        side.set_linestyle("--")
    ax.text(0.5, 0.5, words, ha="center", va="center", color=GREY, transform=ax.transAxes)


def key(label: str, number: int) -> Line2D:
    """A legend's entry for the series with this number."""
    return Line2D([], [], marker=marker(number), label=label, **look(number))
