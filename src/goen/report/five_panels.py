"""The paper's summary figure, from the studies at hand."""

from collections.abc import Mapping

from goen.report.blocks import Drawing, Section, text_of
from goen.report.figures.five_panels import Line, five_panels
from goen.report.run_folder import Epoch, RunFolder

_RATIO = "inter_intra_ratio"


def five_panel_section(run: RunFolder) -> list[Section]:
    """Training, calibration, compactness, ablation and seeds; panels without data are named.

    Nothing where there is no panel to draw.
    """
    by_study: dict[str, RunFolder] = {}
    for other in (run, *run.beside):
        by_study.setdefault(other.summary.study, other)
    training = _line(run.epochs, "validation_accuracy")
    calibration = _line(run.head_epochs, "gap")
    ratios = _ratios(by_study)
    ablation = _by_variant(by_study["ablate"]) if "ablate" in by_study else {}
    seeds = _by_seed(by_study["seeds"]) if "seeds" in by_study else {}
    panels = {
        "training": bool(training),
        "calibration": bool(calibration),
        "compactness": bool(ratios),
        "ablation": bool(ablation),
        "seeds": bool(seeds),
    }
    drawn = [panel for panel, has in panels.items() if has]
    missing = [panel for panel, has in panels.items() if not has]
    if not drawn:
        return []
    text = text_of("run.html", "five_panels", missing=missing)
    figure = five_panels(training, calibration, ratios, ablation, seeds)
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
    lines = {name: _line(epochs, _RATIO) for name, epochs in by_variant.items()}
    return {name: line for name, line in lines.items() if line}


def _by_variant(run: RunFolder) -> dict[str, float]:
    return {
        title: _mean_auroc(run, method, None)
        for method, (title, _) in run.titles.items()
        if method in run.summary.uses_ood
    }


def _by_seed(run: RunFolder) -> dict[str, float]:
    seeds = list(dict.fromkeys(r.seed for r in run.results))
    method = list(run.titles)[-1]  # the gate's
    return {str(seed): _mean_auroc(run, method, seed) for seed in seeds}


def _mean_auroc(run: RunFolder, method: str, seed: int | None) -> float:
    """Over the unseen sets alone, or over all where there is no unseen one."""
    sets = [name for name in run.sets if name not in run.seen] or list(run.sets)
    values = [
        r.value
        for r in run.results
        if (r.method, r.metric) == (method, "auroc")
        and r.dataset in sets
        and seed in (None, r.seed)
    ]
    return sum(values) / len(values)
