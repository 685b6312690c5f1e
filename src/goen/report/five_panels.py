"""The paper's summary figure, from the studies at hand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from goen.io.results import Result
from goen.report.blocks import Drawing, Section
from goen.report.comparison import PAPER_SETS
from goen.report.figures.style import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    canvas,
    draw_epochs,
    goen_style,
    in_legend,
    label_rows,
    wrap_labels,
)
from goen.report.run_folder import Epoch, RunFolder
from goen.report.summary import Study
from goen.report.texts import text_of

# More lines than these have their legend beside the panels, where there is room.
_FEW = 2

Line = Sequence[tuple[int, float]]
"""A value by epoch, counted from 1."""


@dataclass(frozen=True)
class Panel:
    """One of the five: lines by epoch or bars; without either it is not drawn.

    Attributes:
        name: also its title.
        quantity: that it shows.
        lines: by name.
        bars: by name.
        kept: by line, the epoch whose head was kept.
        colours: of the lines.
        instead: whether this is drawn in place of what the paper has, which was not recorded.
    """

    name: str
    quantity: str = ""
    lines: Mapping[str, Line] = field(default_factory=dict)
    bars: Mapping[str, float] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    colours: Sequence[str] = COLOURS
    instead: bool = False

    @property
    def has_data(self) -> bool:
        """Whether there is something to draw."""
        return bool(self.lines or self.bars)


def five_panel_section(run: RunFolder) -> list[Section]:
    """Training, calibration, compactness, ablation and seeds; panels without data are named.

    Nothing where there is no panel to draw.
    """
    by_study: dict[str, RunFolder] = {}
    for other in (run, *run.beside):
        by_study.setdefault(other.summary.study, other)
    panels = [
        Panel("training", "validation accuracy", _lines({"": run.epochs}, "validation_accuracy")),
        _calibration(run),
        _compactness(by_study.get("geometry", run)),
        _ablation(by_study.get("ablate")),
        _seeds(by_study.get("seeds")),
    ]
    drawn = [panel.name for panel in panels if panel.has_data]
    if not drawn:
        return []
    text = text_of(
        "run.html",
        "five_panels",
        missing=[panel.name for panel in panels if not panel.has_data],
        instead=[panel.name for panel in panels if panel.instead],
        kept=any(panel.kept for panel in panels),
    )
    alt = f"Panels of the paper's summary figure: {', '.join(drawn)}."
    drawing = Drawing("five-panels", five_panels(panels), alt, wide=True)
    return [Section("The paper's five panels", [text, [drawing]])]


def _calibration(run: RunFolder) -> Panel:
    """The mean scores of ID and OOD images; the gap between them where it alone was recorded."""
    scores = {"ID images": "id_score", "OOD images": "ood_score"}
    lines = {title: _line(run.head_epochs, name) for title, name in scores.items()}
    if all(lines.values()):
        kept = dict.fromkeys(lines, _kept(run.head_epochs))
        quantity = "mean uncertainty score u,\nheld-out images"
        return Panel("calibration", quantity, lines, kept=kept, colours=(BLUE, ORANGE))
    gap = _lines({"": run.head_epochs}, "gap")
    return Panel("calibration", "mean u(OOD) − mean u(ID)", gap, instead=bool(gap))


def _compactness(source: RunFolder) -> Panel:
    """The ratio by epoch of each variant."""
    by_title = {source.label(v) if v else "": e for v, e in _by_variant(source.epochs).items()}
    return Panel("compactness", "inter/intra class ratio", _lines(by_title, "inter_intra_ratio"))


def _ablation(run: RunFolder | None) -> Panel:
    """The average AUROC of each variant with its calibrated head."""
    if run is None:
        return Panel("ablation")
    sets = _averaged(run)
    means = {
        title: run.mean_auroc(m, sets)
        for m, (title, _) in run.titles.items()
        if m in run.summary.uses_ood
    }
    return Panel("ablation", _average_of(sets), bars=_measured(means))


def _seeds(run: RunFolder | None) -> Panel:
    """The average AUROC by epoch of each seed's head; of the finished gates without a record."""
    if run is None:
        return Panel("seeds")
    sets = _averaged(run)
    by_seed = {f"seed {seed}": epochs for seed, epochs in _by_variant(run.head_epochs).items()}
    lines: dict[str, Line] = {
        seed: [(e.number, fmean(e.values[f"auroc/{name}"] for name in sets)) for e in epochs]
        for seed, epochs in by_seed.items()
        if all(f"auroc/{name}" in e.values for e in epochs for name in sets)
    }
    if lines:
        kept = {seed: _kept(by_seed[seed]) for seed in lines}
        return Panel("seeds", _average_of(sets), lines, kept=kept)
    method = list(run.titles)[-1]  # the gate's
    results: dict[str, list[Result]] = {}
    for r in run.results:
        results.setdefault(f"seed {r.seed}", []).append(r)
    means = {s: Study(found, run.summary).mean_auroc(method, sets) for s, found in results.items()}
    bars = _measured(means)
    return Panel("seeds", _average_of(sets), bars=bars, instead=bool(bars))


def _averaged(run: RunFolder) -> list[str]:
    """The paper's three sets; all OOD sets of a study that does not have them."""
    return list(PAPER_SETS if {*PAPER_SETS} <= {*run.sets} else run.sets)


def _average_of(sets: Sequence[str]) -> str:
    return "mean AUROC of\n" + ", ".join(sets)


def _measured(means: Mapping[str, float | None]) -> dict[str, float]:
    return {name: mean for name, mean in means.items() if mean is not None}


def _by_variant(epochs: Sequence[Epoch]) -> dict[str, list[Epoch]]:
    found: dict[str, list[Epoch]] = {}
    for epoch in epochs:
        found.setdefault(epoch.variant, []).append(epoch)
    return found


def _lines(epochs: Mapping[str, Sequence[Epoch]], quantity: str) -> dict[str, Line]:
    """By name; without those that have no points."""
    lines = {name: _line(of_name, quantity) for name, of_name in epochs.items()}
    return {name: line for name, line in lines.items() if line}


def _line(epochs: Sequence[Epoch], quantity: str) -> Line:
    return [(e.number, e.values[quantity]) for e in epochs if quantity in e.values]


def _kept(epochs: Sequence[Epoch]) -> int:
    """The epoch that early stopping kept: the first of the widest gap."""
    return max(epochs, key=lambda epoch: epoch.values["gap"]).number


@goen_style
def five_panels(panels: Sequence[Panel]) -> Figure:
    """The panels side by side, three in a row; one without data is left out, its letter too."""
    drawn = [(letter, p) for letter, p in zip("abcde", panels, strict=True) if p.has_data]
    columns, rows = min(3, len(drawn)), math.ceil(len(drawn) / 3)
    figure = canvas(3.4 * rows, 10 * columns / 3)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    spare = axes[len(drawn) :]
    for ax in spare:
        ax.set_axis_off()
    below = 1.0
    for (letter, panel), ax in zip(drawn, axes, strict=False):
        title = f"{letter}  {panel.name.capitalize()}"
        (_draw_lines if panel.lines else _draw_bars)(ax, panel)
        ax.set(title=title)
        if len(panel.lines) > _FEW and spare:
            below = _draw_legend(spare[0], title, ax, below)
        elif len(panel.lines) > 1:
            ax.legend(fontsize=7)
    return figure


def _draw_legend(ax: Axes, title: str, of: Axes, top: float) -> float:
    """The legend of one panel in an empty cell, from this height down; where it ends."""
    handles, names = of.get_legend_handles_labels()
    labels = [*map(in_legend, wrap_labels(names)[0])]
    legend = Legend(
        ax,
        handles,
        labels,
        title=title,
        fontsize=8,
        title_fontsize=9,
        alignment="left",
        loc="upper left",
        borderaxespad=0,
    )
    legend.set_bbox_to_anchor((0, top), ax.transAxes)
    legend.set_in_layout(False)
    ax.add_artist(legend)
    return top - 0.07 * (sum(label.count("\n") + 1 for label in labels) + 2)


def _draw_lines(ax: Axes, panel: Panel) -> None:
    draw_epochs(ax, panel.lines, panel.colours)
    for name, epoch in panel.kept.items():
        value = dict(panel.lines[name])[epoch]
        ax.plot(epoch, value, "o", markersize=10, markerfacecolor="none", color=GREY)
    ax.set(ylabel=panel.quantity)


def _draw_bars(ax: Axes, panel: Panel) -> None:
    heights = np.array(list(panel.bars.values()))
    ax.barh(range(len(heights)), heights, color=GREEN)
    for place, height in enumerate(heights):
        ax.text(height, place, f"{height:.3f} ", va="center", ha="right", fontsize=8, color="black")
    label_rows(ax, list(panel.bars))
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(axis="y", visible=False)
    ax.set(xlabel=panel.quantity, xlim=(max(0.0, heights.min() - 0.1), 1))
