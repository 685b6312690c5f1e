"""The geometry of the feature space, by variant."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from goen.report.figures.style import (
    COLOURS,
    GREY,
    draw_epochs,
    goen_style,
    in_legend,
    label_rows,
    log_axis,
    single_axes,
    wrap_labels,
)

_HATCHES = ("", "//", "..", "xx")


@goen_style
def measure_bars(title: str, by_variant: Mapping[str, Mapping[str, float]]) -> Figure:
    """One measure: a group of bars per variant, a bar per feature.

    Args:
        title: of the measure.
        by_variant: the measure by variant and then by feature.
    """
    features = list(dict.fromkeys(f for values in by_variant.values() for f in values))
    row = max(0.17 * (len(features) + 1), wrap_labels(list(by_variant))[1])
    figure, ax = single_axes(row * len(by_variant) + 1.2)
    finite = [v for values in by_variant.values() for v in values.values() if math.isfinite(v)]
    # Values from 10 to a million would leave all but one bar without length.
    if finite and min(finite) > 0 and max(finite) / min(finite) > 50:
        log_axis(ax, "x")
    thick = 0.8 / max(len(features), 1)
    for number, feature in enumerate(features):
        for place, values in enumerate(by_variant.values()):
            value = values.get(feature, math.nan)
            at = place + (number - (len(features) - 1) / 2) * thick
            text = f" {value:.3g}" if math.isfinite(value) else " infinite"
            text = " n/a" if math.isnan(value) else text
            start = min(finite, default=0.0) if ax.get_xscale() == "log" else 0.0
            shown = value if math.isfinite(value) else start
            label = in_legend(feature) if place == 0 else None
            colour, hatch = COLOURS[number % len(COLOURS)], _HATCHES[number % len(_HATCHES)]
            bar = ax.barh(at, shown, thick * 0.9, edgecolor="white", color=colour, label=label)
            bar[0].set_hatch(hatch)
            ax.text(shown, at, text, va="center", fontsize=7.5, color=GREY)
    label_rows(ax, list(by_variant))
    ax.margins(x=0.18)
    ax.grid(axis="y", visible=False)
    ax.set_title(title, loc="right")
    if len(features) > 1:
        figure.legend(loc="outside lower center", ncols=min(3, len(features)))
    return figure


@goen_style
def measure_by_epoch(title: str, by_variant: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    """One measure by epoch, a line per variant."""
    figure, ax = single_axes(3.6)
    draw_epochs(ax, by_variant)
    ax.set(title=title)
    if len(by_variant) > 1:
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure
