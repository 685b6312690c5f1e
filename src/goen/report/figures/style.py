"""The style of every figure: a palette for colour-blind readers, sizes that fit a phone."""

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec, TypedDict

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from goen.escaping import drawable

# Okabe and Ito's palette for colour-blind readers; markers and dashes carry the same information.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9",
)  # fmt: skip
GREY, INK, FAINT, PALE = "#6b6b6b", "#1a1a1a", "#e8e8e8", "#bbbbbb"
DARK_PAPER = "#15171a"
# What the neutral colours become where the reader's system prefers a dark page; hues stay.
_DARK = {
    "#ffffff": DARK_PAPER,
    "#000000": "#e6e6e6",
    INK: "#e6e6e6",
    GREY: "#a8adb3",
    FAINT: "#303439",
    PALE: "#5c6168",
}
OLIVE = "#999933"
# Of methods, variants and other series. Blue is ID and orange OOD in every figure that has both.
COLOURS = (GREEN, RED, PURPLE, INK, SKY, OLIVE, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Dashes = Literal["-", "--", "-.", ":"]
DASHES: tuple[Dashes, ...] = ("-", "--", "-.", ":")

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
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "goen",
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a name may hold a $
}
_NO_DATES: dict[str, dict[str, None]] = {
    "svg": {"Date": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
}
_MARK = "\u200b"
P = ParamSpec("P")


def goen_style(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A decorator: the function draws in goen's style, and the layout of its figure is final."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(_STYLE):
            figure = draw(*args, **kwargs)
            for text in figure.findobj(Text):
                text.set_text(_lines(text.get_text()))
            # Once, rather than again for every format it is saved in.
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            return figure

    return drawn


def _lines(text: str) -> str:
    """The text without what has no glyph; its lines stay."""
    return "\n".join(drawable(line) for line in _unmarked(text).split("\n"))


def canvas(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of this size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def single_axes(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure of this size in inches, and its only axes."""
    figure = canvas(height, width)
    return figure, figure.subplots()


class LineStyle(TypedDict):
    """Matplotlib's arguments for the style of a line."""

    color: str
    linestyle: Dashes


def line_style(number: int, colours: Sequence[str] = COLOURS) -> LineStyle:
    """Colour and dashes of the line with this number; the first 28 are all different."""
    again, colour = divmod(number, len(colours))
    return {"color": colours[colour], "linestyle": DASHES[(colour - again) % len(DASHES)]}


def marker(number: int) -> str:
    """The marker of the series with this number."""
    return MARKERS[number % len(MARKERS)]


def drawn(figure: Figure, *forms: str) -> dict[str, bytes]:
    """The figure as the content of files of these forms, or of all; the same bytes every time."""
    contents = {form: io.BytesIO() for form in forms or FORMS}
    with mpl.rc_context(_STYLE):
        for form, content in contents.items():
            figure.savefig(content, format=form, dpi=150, metadata=_NO_DATES[form])
    return {form: content.getvalue() for form, content in contents.items()}


def follow_colour_scheme(svg: bytes) -> bytes:
    """The figure with neutral colours that follow the scheme, light or dark, of its reader.

    White and black text stays as it is: it is written on a colour, not on the page.
    """
    rules = [
        f':not(text)[style*="{part}: {light}"] {{ {part}: {dark} !important }}'
        if light in ("#ffffff", "#000000")
        else f'[style*="{part}: {light}"] {{ {part}: {dark} !important }}'
        for light, dark in _DARK.items()
        for part in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
    return svg.replace(b"</metadata>", b"</metadata>" + style.encode(), 1)


def in_legend(name: str) -> str:
    """The name as the label of a series: Matplotlib leaves names that begin with ``_`` out.

    Such a name gets a mark before it, which ``goen_style`` takes away when the legend is made.

    Example:
        >>> in_legend("knn"), in_legend("_mine").endswith("_mine")
        ('knn', True)
    """
    return f"{_MARK}{name}" if name.startswith("_") else name


def _unmarked(label: str) -> str:
    return label.removeprefix(_MARK) if label.startswith(f"{_MARK}_") else label


def wrap_labels(labels: Sequence[str]) -> tuple[list[str], float]:
    """The labels broken into short lines, and the height of a row in inches.

    Example:
        >>> wrap_labels(["KNN", "concatenation as in the figure, with CenterLoss"])
        (['KNN', 'concatenation as in the\\nfigure, with CenterLoss'], 0.34)
    """
    plain = [drawable(_unmarked(label)) for label in labels]
    lines = [textwrap.wrap(label, 26, max_lines=3, placeholder=" …") or [""] for label in plain]
    most = max(map(len, lines), default=1)
    return ["\n".join(parts) for parts in lines], max(0.27, 0.17 * most)


def label_rows(ax: Axes, labels: Sequence[str]) -> None:
    """Rows from top to bottom, each with its label at the left."""
    ax.set_yticks(range(len(labels)), wrap_labels(labels)[0], fontsize=9)
    ax.set_ylim(len(labels) - 0.4, -0.6)


def log_axis(ax: Axes, name: Literal["x", "y"]) -> None:
    """Make the scale of an axis logarithmic, with plain numbers at its ticks.

    Matplotlib's own labels of powers of ten are formulas, which figures here do not typeset.
    """
    ax.set(**{f"{name}scale": "log"})
    axis = ax.xaxis if name == "x" else ax.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def epoch_axis(ax: Axes) -> None:
    """Label the x axis with whole epochs."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("epoch")


def draw_epochs(
    ax: Axes, lines: Mapping[str, Sequence[tuple[int, float]]], colours: Sequence[str] = COLOURS
) -> None:
    """A line per name through its (epoch, value) pairs; markers where there are few."""
    for number, (name, line) in enumerate(lines.items()):
        epochs, values = zip(*line, strict=True)
        few, style = marker(number) if len(epochs) < 30 else None, line_style(number, colours)
        ax.plot(epochs, values, marker=few, markersize=4, label=in_legend(name), **style)
    epoch_axis(ax)
