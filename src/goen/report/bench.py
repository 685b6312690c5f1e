"""The page of a benchmark or an ablation: methods side by side."""

from collections.abc import Sequence

from markupsafe import Markup

from goen.report.blocks import (
    Block,
    Drawing,
    Gallery,
    Numbers,
    Page,
    Section,
    Words,
    bold,
    listed,
    slug,
)
from goen.report.figures.bench import Cost, Estimate, cost_against, forest
from goen.report.run_folder import RunFolder

_WHAT = {"bench": ("Benchmark", "methods"), "ablate": ("Ablation", "variants")}


def comparison_page(run: RunFolder, beside: Sequence[RunFolder]) -> Page:
    """Summary, AUROC with intervals, tables, cost."""
    del beside  # only the main job's five panels need other studies
    title, _ = _WHAT[run.study]
    tables = run.tables()
    first, rest = tables[:1], tables[1:]
    sections = [
        Section("AUROC", [*_forests(run), *map(Numbers, first)]),
        *_cost(run),
        Section("Other measures", list(map(Numbers, rest))),
    ]
    return Page(f"{title} on {run.summary['data']}", _summary(run), sections)


def _methods(run: RunFolder) -> list[str]:
    return list(run.titles)


def _summary(run: RunFolder) -> list[Block]:
    _, what = _WHAT[run.study]
    best = []
    for name in _unseen_first(run):
        found = [r for r in run.results if r.dataset == name and r.metric == "auroc"]
        top = max(found, key=lambda r: r.value)
        seen = ", which calibrated with its kind" if top.seen_in_calibration else ""
        best.append(
            Markup("{} on {} ({}{})").format(bold(top.value), name, run.label(top.method), seen)
        )
    budgets = ", ".join(dict.fromkeys(r.budget for r in run.results))
    seeds = ", ".join(dict.fromkeys(str(r.seed) for r in run.results))
    lead = Markup(
        "{} {} were compared on the same images of {}, budget {}, seed {}. The highest AUROC is {}."
    ).format(len(_methods(run)), what, run.summary["data"], budgets, seeds, listed(best))
    words = (
        "One training of each network: the intervals are over images and know nothing of the "
        "spread over seeds, so a small lead is not a ranking."
    )
    return [Words(lead, "lead"), Words(words)]


def _unseen_first(run: RunFolder) -> list[str]:
    return sorted(run.sets, key=lambda name: name in run.seen)


def _forests(run: RunFolder) -> list[Block]:
    drawings = [
        _forest(run, name, part, methods)
        for name in _unseen_first(run)
        for part, methods in _parts(run).items()
    ]
    words = (
        "A line is the 95 % interval. Blue discs: the method saw no image of this kind. Orange "
        "squares: it was calibrated with other images of this kind. Sets of a kind that no method "
        "saw come first: they are the ones that tell how the unknown is met."
    )
    return [Words(words), Gallery(tuple(drawings))]


def _parts(run: RunFolder) -> dict[str, list[str]]:
    """All methods together, or by section where sections repeat each other's titles."""
    titles = [title for title, _ in run.titles.values()]
    parts: dict[str, list[str]] = {}
    for method, (_, section) in run.titles.items():
        parts.setdefault(section if len(set(titles)) < len(titles) else "", []).append(method)
    return parts


def _forest(run: RunFolder, name: str, part: str, methods: Sequence[str]) -> Drawing:
    estimates = []
    for method in methods:
        label = run.titles[method][0]
        r = run.by_key.get((method, name, "auroc"))
        estimates.append(
            Estimate(label, None)
            if r is None
            else Estimate(label, r.value, r.low, r.high, r.seen_in_calibration)
        )
    title = f"{name}, {part}" if part else f"{name} ({run.sets[name]})"
    told = "; ".join(
        f"{e.label} {'not measured' if e.value is None else format(e.value, '.4f')}"
        for e in estimates
    )
    alt = f"AUROC with 95 % intervals on {title}: {told}."
    return Drawing(
        f"auroc-{slug(name)}{f'-{slug(part)}' * bool(part)}", forest(title, estimates), alt
    )


def _cost(run: RunFolder) -> list[Section]:
    unseen = [name for name in run.sets if name not in run.seen]
    sets = unseen or list(run.sets)
    costs = []
    for method in _methods(run):
        training = run.by_key.get((method, "test", "training_seconds"))
        aurocs = [run.by_key.get((method, name, "auroc")) for name in sets]
        if training is None or training.seconds is None or None in aurocs:
            continue
        mean = sum(r.value for r in aurocs if r is not None) / len(aurocs)
        seconds = training.value + training.seconds
        costs.append(Cost(run.label(method), run.titles[method][1], seconds, mean))
    if not costs:
        return []
    which = "sets never seen" if unseen else "all sets"
    told = "; ".join(f"{c.label} {c.seconds:.3g} s, {c.value:.4f}" for c in costs)
    drawing = Drawing(
        "cost",
        cost_against(costs, f"mean AUROC, {which}"),
        f"Cost against mean AUROC over {which}: {told}.",
        wide=True,
    )
    words = (
        "Training counts in full for every method, also where several share one network: it is "
        "what a user of that one method would pay. On the machine named below."
    )
    return [Section("What it costs", [Words(words), Gallery.of(drawing)])]
