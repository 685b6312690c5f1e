"""The paper's figure, from the studies at hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from goen.report.blocks import Drawing, Gallery, Section, Words
from goen.report.figures.five_panels import five_panels
from goen.report.run_folder import RunFolder

_METHOD = "goen"
_RATIO = "inter_intra_ratio"


def five_panel_section(runs: Sequence[RunFolder]) -> Section:
    """Training, calibration, compactness, ablation and seeds; missing panels say so."""
    by_study: dict[str, RunFolder] = {}
    for run in runs:
        by_study.setdefault(run.study, run)
    main = runs[0]
    head = main.head_story
    ratios = _ratios(by_study)
    ablation = _by_variant(by_study["ablate"]) if "ablate" in by_study else {}
    seeds = _by_seed(by_study["seeds"]) if "seeds" in by_study else {}
    there = {
        "training": bool(main.story),
        "calibration": bool(head),
        "compactness": bool(ratios),
        "ablation": bool(ablation),
        "seeds": bool(seeds),
    }
    told = [f"{panel} {'is drawn' if has else 'is missing'}" for panel, has in there.items()]
    absent = [panel for panel, has in there.items() if not has]
    words = (
        "The five panels of the paper's summary figure: validation accuracy by epoch, the head's "
        "convergence, how compact the classes are, the ablation, and the spread over seeds."
    )
    if absent:
        words += (
            f" Missing here: {', '.join(absent)}. One run holds no more; goen report RUN --beside "
            "FOLDER ... takes the others from the folders of goen ablate, seeds and geometry."
        )
    figure = five_panels(main.story, head, ratios, ablation, seeds)
    drawing = Drawing("five-panels", figure, f"Five panels: {'; '.join(told)}.", wide=True)
    return Section("The paper's five panels", [Words(words), Gallery.of(drawing)])


def _ratios(by_study: Mapping[str, RunFolder]) -> dict[str, list[dict[str, Any]]]:
    """The rows that have a ratio, by variant; of the geometry study where there is one."""
    source = by_study.get("geometry", next(iter(by_study.values())))
    found: dict[str, list[dict[str, Any]]] = {}
    for row in source.story:
        if row.get(_RATIO) is not None:
            name = source.label(str(row["variant"])) if "variant" in row else ""
            found.setdefault(name, []).append(row)
    return found


def _by_variant(run: RunFolder) -> dict[str, float]:
    return {
        run.titles[method][0]: _mean(run, method, None)
        for method in run.titles
        if method in run.summary["uses_ood"]
    }


def _by_seed(run: RunFolder) -> dict[str, float]:
    seeds = list(dict.fromkeys(r.seed for r in run.results))
    heads = any(r.method == _METHOD for r in run.results)
    method = _METHOD if heads else "mahalanobis_z"
    return {str(seed): _mean(run, method, seed) for seed in seeds}


def _mean(run: RunFolder, method: str, seed: int | None) -> float:
    values = [
        r.value
        for r in run.results
        if r.method == method and r.metric == "auroc" and seed in (None, r.seed)
    ]
    return sum(values) / len(values)
