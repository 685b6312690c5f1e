"""The paper's summary figure, from the studies at hand."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from goen.io.results import Result
from goen.report.blocks import Drawing, Section
from goen.report.figures.style import GREEN, canvas, draw_epochs, goen_style, label_rows
from goen.report.run_folder import Epoch, RunFolder
from goen.report.summary import Study
from goen.report.texts import text_of

Line = Sequence[tuple[int, float]]
"""A value by epoch, counted from 1."""
Bars = Mapping[str, float]


_QUANTITIES = {
    "training": "validation accuracy",
    "calibration": "mean u(OOD) − mean u(ID)",
    "compactness": "inter/intra class ratio",
}
_RATIO = "inter_intra_ratio"


def five_panel_section(run: RunFolder) -> list[Section]:
    """Training, calibration, compactness, ablation and seeds; panels without data are named.

    Nothing where there is no panel to draw.
    """
    by_study: dict[str, RunFolder] = {}
    for other in (run, *run.beside):
        by_study.setdefault(other.summary.study, other)
    lines = {
        "training": _by_name({"": _line(run.epochs, "validation_accuracy")}),
        "calibration": _by_name({"": _line(run.head_epochs, "gap")}),
        "compactness": _ratios(by_study),
    }
    bars = {
        "ablation": _by_variant(by_study["ablate"]) if "ablate" in by_study else {},
        "seeds": _by_seed(by_study["seeds"]) if "seeds" in by_study else {},
    }
    panels: dict[str, object] = {**lines, **bars}
    drawn = [name for name, panel in panels.items() if panel]
    if not drawn:
        return []
    text = text_of("run.html", "five_panels", missing=[n for n in panels if n not in drawn])
    figure = five_panels(lines, bars)
    alt = f"Panels of the paper's summary figure: {', '.join(drawn)}."
    drawing = Drawing("five-panels", figure, alt, wide=True)
    return [Section("The paper's five panels", [text, [drawing]])]


def _line(epochs: list[Epoch], quantity: str) -> Line:
    return [(e.number, e.values[quantity]) for e in epochs if quantity in e.values]


def _ratios(by_study: Mapping[str, RunFolder]) -> dict[str, Line]:
    """The ratio by epoch of each variant; from the geometry study where there is one."""
    source = by_study.get("geometry", next(iter(by_study.values())))
    by_variant: dict[str, list[Epoch]] = {}
    for epoch in source.epochs:
        name = source.label(epoch.variant) if epoch.variant else ""
        by_variant.setdefault(name, []).append(epoch)
    return _by_name({name: _line(epochs, _RATIO) for name, epochs in by_variant.items()})


def _by_name(lines: Mapping[str, Line]) -> dict[str, Line]:
    """Those that have points."""
    return {name: line for name, line in lines.items() if line}


def _by_variant(run: RunFolder) -> dict[str, float]:
    means = {
        title: run.mean_auroc(m)
        for m, (title, _) in run.titles.items()
        if m in run.summary.uses_ood
    }
    return {title: mean for title, mean in means.items() if mean is not None}


def _by_seed(run: RunFolder) -> dict[str, float]:
    method = list(run.titles)[-1]  # the gate's
    by_seed: dict[str, list[Result]] = {}
    for r in run.results:
        by_seed.setdefault(str(r.seed), []).append(r)
    means = {s: Study(results, run.summary).mean_auroc(method) for s, results in by_seed.items()}
    return {seed: mean for seed, mean in means.items() if mean is not None}


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
