"""The reports of ``goen bench`` and ``goen ablate``: methods or variants side by side."""

from collections.abc import Sequence
from functools import partial

from goen.io.results import Result
from goen.report.blocks import Drawing, Page, PageBlock, Paragraph, Section
from goen.report.comparison import METRICS, Comparison, first_of
from goen.report.figures.bench import Scored, forest, roc_by_kind, score_rows
from goen.report.figures.scores import prevalence_of
from goen.report.openood_board import board_table
from goen.report.run_folder import RunFolder
from goen.report.summary import Summary
from goen.report.table import Cell, Table
from goen.report.texts import bold, listed, named, number_of, slug, text_of
from goen.report.wrong_answers import risk_sections, wrong_answers_tables

_text = partial(text_of, "bench.html")
_PER_IMAGE = {
    "network_ms_per_image": "network, ms per image",
    "score_ms_per_image": "method, ms per image",
}


def bench_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """AUROC, both FPR95s, AUPR, the classifiers and the cost; of CIFAR-10 the board's means."""
    comparison = Comparison(results, summary)
    board = board_table(comparison)
    return [
        comparison.auroc(),
        *([] if board is None else [board]),
        *comparison.others(),
        *wrong_answers_tables(comparison),
        comparison.classifiers(),
        _cost(comparison),
    ]


def _cost(comparison: Comparison) -> Table:
    rows = [comparison.by_key[m, "test", "training_seconds"] for m in comparison.methods]
    columns = {}
    if any(r.value for r in rows):
        columns["training s"] = [Cell(r.value, ".0f") for r in rows]
    columns["fit and score s"] = [Cell(r.seconds, ".2f") for r in rows]
    for metric, title in _PER_IMAGE.items():
        found = [comparison.by_key.get((m, "test", metric)) for m in comparison.methods]
        if any(found):
            columns[title] = [Cell() if r is None else Cell(r.value, ".3f") for r in found]
    machine = named(comparison.summary.hardware) or "not recorded"
    note = (
        "Seconds, and milliseconds per image: of the network once, and of the method on top of it "
        "(with passes of its own). Training counts in full for every method, also where several "
        f"share one network: it is the cost of using that one method. The machine: {machine}."
    )
    return comparison.table("cost", "Cost", columns, note)


def bench_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """The comparison of the methods."""
    compared = number_of(len(run.titles), "method")
    return comparison_page(run, tables, title="Benchmark", compared=compared)


def ablate_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """AUROC, accuracy, the differences with their paired tests, the other measures."""
    comparison = Comparison(results, summary)
    return [
        comparison.auroc(),
        comparison.classifiers(),
        comparison.differences(
            "differences",
            "AUROC minus that of the default with its calibrated head",
            "p_against_default",
            lambda row: "default",
        ),
        comparison.differences(
            "center_loss",
            "AUROC without CenterLoss minus with it",
            "p_of_center_loss",
            lambda row: summary.with_center_loss[row],
        ),
        *comparison.others(),
        *wrong_answers_tables(comparison),
    ]


def ablate_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """The comparison of the variants."""
    variants = {title for title, _ in run.titles.values()}  # each has up to two rows
    scores = listed(list(dict.fromkeys(section for _, section in run.titles.values())))
    compared = f"{number_of(len(variants), 'variant')} (" + scores + ")"
    return comparison_page(run, tables, title="Ablation", compared=compared)


def comparison_page(run: RunFolder, tables: Sequence[Table], *, title: str, compared: str) -> Page:
    """A summary, the AUROCs with their intervals, ROC curves and scores, the other tables.

    Args:
        run: the study.
        tables: of the study, that of the AUROC first.
        title: of the page.
        compared: what the rows are, with their number.
    """
    sections = [
        Section("AUROC", [_text("intervals"), _forests(run), *tables[:1]]),
        *_score_section(run),
        *_risk_sections(run),
        Section("Other measures", tables[1:]),
    ]
    return Page(f"{title} on {run.summary.data}", _summary(run, compared), sections)


# -- summary -------------------------------------------------------------------------------------


def _summary(run: RunFolder, compared: str) -> list[PageBlock]:
    given = any(r.budget == "given" for r in run.results)
    lead = _text(
        "lead",
        given=given,
        compared=compared,
        data=run.summary.data,
        budgets=", ".join(dict.fromkeys(r.budget for r in run.results)),
        seeds=", ".join(dict.fromkeys(str(r.seed) for r in run.results)),
        unseen=[best for name in run.unseen for best in _best(run, name)],
        others=[best for name in run.sets if name in run.seen for best in _best(run, name)],
    )
    conclusion = run.summary.conclusion
    return [
        Paragraph(lead, "lead"),
        *([_text("conclusion", text=conclusion)] if conclusion else []),
        _text("caution_given" if given else "caution"),
    ]


def _best(run: RunFolder, name: str) -> list[str]:
    """The highest AUROC on the set among the methods that its kind did not calibrate."""
    measured = [run.by_key.get((method, name, "auroc")) for method in run.titles]
    found = [r for r in measured if r is not None and not r.seen_in_calibration]
    if not found:
        return []
    shown = f"{max(r.value for r in found):.4f}"
    methods = [run.label(r.method) for r in found if f"{r.value:.4f}" == shown]
    return [bold(float(shown)) + f" on {name} ({first_of(methods)})"]


# -- intervals -----------------------------------------------------------------------------------


def _forests(run: RunFolder) -> list[Drawing]:
    return [
        _forest(run, name, part, methods)
        for name in run.sets
        for part, methods in _parts(run).items()
    ]


def _kinds(run: RunFolder) -> list[str]:
    """The sections of the methods, in order: the number of a section is that of its colour."""
    return list(dict.fromkeys(section for _, section in run.titles.values()))


def _parts(run: RunFolder) -> dict[str, list[str]]:
    """All methods together, or by section where sections repeat each other's titles."""
    titles = [title for title, _ in run.titles.values()]
    parts: dict[str, list[str]] = {}
    for method, (_, section) in run.titles.items():
        parts.setdefault(section if len(set(titles)) < len(titles) else "", []).append(method)
    return parts


def _forest(run: RunFolder, name: str, part: str, methods: Sequence[str]) -> Drawing:
    kinds = _kinds(run)
    rows = []
    for method in methods:
        label, section = run.titles[method]
        rows.append((label, kinds.index(section), run.by_key.get((method, name, "auroc"))))
    title = f"{_titled(run, name)}, {part}" if part else _titled(run, name)
    values = "; ".join(
        f"{label} {'not measured' if r is None else format(r.value, '.4f')}" for label, _, r in rows
    )
    alt = f"AUROC with 95 % intervals on {title}: {values}."
    file = f"auroc-{slug(name)}{f'-{slug(part)}' * bool(part)}"
    return Drawing(file, forest(title, rows, kinds), alt)


def _titled(run: RunFolder, name: str) -> str:
    """The set, its group, and whether it is unseen."""
    group = run.sets[name]
    words = [] if group in (name, "ood") else [group]
    if run.seen or run.results[0].budget != "given":
        words.append("calibration kind" if name in run.seen else "unseen")
    return f"{name} ({', '.join(words)})" if words else name


# -- ROC curves and scores -----------------------------------------------------------------------


def _score_section(run: RunFolder) -> list[Section]:
    """ROC curves and scores on every set; nothing where the run keeps no scores."""
    sets = [name for name in run.sets if name in run.scores and "test" in run.scores]
    if not sets:
        return []
    drawings = [drawing for name in sets for drawing in _score_figures(run, name)]
    return [Section("ROC curves and scores", [_text("scores"), drawings])]


def _risk_sections(run: RunFolder) -> list[Section]:
    scores = {m: values for m, values in run.scores.get("test", {}).items() if m in run.titles}
    return risk_sections(run, scores, sorted(_representatives(run)))


def _score_figures(run: RunFolder, name: str) -> list[Drawing]:
    id_scores, ood_scores = run.scores["test"], run.scores[name]
    kinds, shown = _kinds(run), _representatives(run)
    rows = [
        Scored(
            run.label(method),
            kinds.index(run.titles[method][1]),
            id_scores[method],
            ood_scores[method],
            legend=_legend(run, method, name) if method in shown else "",
        )
        for method in run.titles
        if method in id_scores and method in ood_scores
    ]
    if not rows:
        return []
    num_id, num_ood = len(rows[0].id), len(rows[0].ood)
    share = prevalence_of(rows[0].id, rows[0].ood)
    counts = f"{num_ood:,} OOD and {num_id:,} ID images"
    title = _titled(run, name)
    legends = [row.legend for row in rows if row.legend]
    return [
        Drawing(
            f"roc-{slug(name)}",
            roc_by_kind(title, rows),
            f"ROC curves on {title}. {'; '.join(legends)}. The other methods in grey.",
            caption=f"{counts}: the AUPR of a random score is {share:.3f}.",
        ),
        Drawing(
            f"scores-{slug(name)}",
            score_rows(title, rows),
            f"Histograms of the scores of {counts} by method: {', '.join(r.label for r in rows)}.",
        ),
    ]


def _legend(run: RunFolder, method: str, name: str) -> str:
    """The method and its numbers on the set."""
    found = {metric: run.by_key.get((method, name, metric)) for metric in ("auroc", "aupr_out")}
    numbers = [
        f"{METRICS[metric].title.partition(',')[0]} {r.value:.4f}"
        for metric, r in found.items()
        if r is not None
    ]
    seen = any(r.seen_in_calibration for r in found.values() if r is not None)
    return f"{run.label(method)}{'†' * seen}: {', '.join(numbers)}"


def _representatives(run: RunFolder) -> set[str]:
    """Of each section, the method with the highest mean AUROC over the unseen sets."""
    best: dict[str, tuple[float, str]] = {}
    for method, (_, section) in run.titles.items():
        mean = run.mean_auroc(method)
        if mean is not None and (section not in best or mean > best[section][0]):
            best[section] = (mean, method)
    return {method for _, method in best.values()}
