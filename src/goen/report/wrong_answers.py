"""How well scores find wrong answers on ID images: the table and the curves that studies share."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from goen.report.blocks import Drawing, Section
from goen.report.comparison import Comparison
from goen.report.figures.bench import Scored, risk_by_kind
from goen.report.run_folder import RunFolder
from goen.report.table import Cell, Table, marked
from goen.report.texts import text_of
from goen.studies.rows import WRONG

_COLUMNS = {
    "error_auroc": ("AUROC of errors", True),
    "aurc": ("AURC", False),
    "e_aurc": ("E-AURC", False),
    "accuracy_at_95": ("accuracy at 95 %", True),
    "accuracy_at_80": ("accuracy at 80 %", True),
}
_MEANING = (
    "On ID images alone. AUROC of errors: the probability that a misclassified image has a higher "
    "score than a correctly classified one. AURC: the mean share of errors among the images with "
    "the lowest scores, over all coverages; it depends on the accuracy. E-AURC: its excess over "
    "that of an order in which every error comes last. Accuracy at 95 %: among the 95 % of the "
    "images with the lowest scores. Errors are rare: the intervals (95 %, over images) are wide."
)


def wrong_answers_tables(comparison: Comparison) -> list[Table]:
    """AUROC of errors, AURC and accuracy at coverage, beside the AUROC of OOD images.

    Nothing if it was not measured.
    """
    methods = comparison.methods
    if not any((method, "test", "error_auroc") in comparison.by_key for method in methods):
        return []
    sets = comparison.unseen or list(comparison.sets)
    ood = marked([Cell(comparison.mean_auroc(m)) for m in methods], higher_is_better=True)
    columns: dict[str, Sequence[Cell]] = {"AUROC of OOD, mean": ood}
    for metric, (title, higher) in _COLUMNS.items():
        cells = [comparison.cell(method, ["test"], metric) for method in methods]
        columns[title] = marked(cells, higher_is_better=higher)
    purposes = f"For OOD images (mean over {', '.join(sets)}): {_best(comparison, 'auroc')}. "
    purposes += f"For wrong answers: {_best(comparison, 'error_auroc')}."
    return [comparison.table("wrong_answers", "Wrong answers", columns, _MEANING, purposes)]


def _best(comparison: Comparison, metric: str) -> str:
    """The method with the highest AUROC of this kind, with the number."""
    found = {
        method: comparison.mean_auroc(method)
        if metric == "auroc"
        else comparison.cell(method, ["test"], metric).value
        for method in comparison.methods
    }
    measured = {method: value for method, value in found.items() if value is not None}
    if not measured:
        return "not measured"
    best = max(measured, key=lambda method: measured[method])
    return f"{comparison.label(best)} ({measured[best]:.4f})"


def risk_sections(
    run: RunFolder, scores: dict[str, NDArray[np.float64]], coloured: Sequence[str]
) -> list[Section]:
    """The share of errors among accepted images by coverage, a curve for each score.

    Args:
        run: the study.
        scores: of the ID images by method.
        coloured: the methods with a legend.
    """
    wrong = {method: errors for method in scores if (errors := _errors(run, method)) is not None}
    kinds = [*dict.fromkeys(section for _, section in run.titles.values())]
    shown = [
        Scored(
            run.label(method),
            kinds.index(run.titles[method][1]) if len(kinds) > 1 else number,
            scores[method][~errors],
            scores[method][errors],
            legend=f"{run.label(method)}: AURC {_aurc(run, method)}" if method in coloured else "",
        )
        for number, (method, errors) in enumerate(wrong.items())
        if 0 < errors.sum() < len(errors)
    ]
    if not shown:
        return []
    legends = "; ".join(one.legend for one in shown if one.legend)
    alt = f"Risk by coverage. {legends}. The other scores in grey."
    drawing = Drawing("risk-coverage", risk_by_kind(shown), alt)
    return [Section("Wrong answers", [text_of("wrong_answers.html", "curve"), [drawing]])]


def _errors(run: RunFolder, method: str) -> NDArray[np.bool_] | None:
    """Which answers of the method are wrong, if it is known."""
    test = run.scores["test"]
    if "truth" in test:
        wrong: NDArray[np.bool_] = test["logits"].argmax(axis=1) != test["truth"]
        return wrong
    found = run.scores.get(WRONG, {}).get(method)
    return None if found is None else found.astype(np.bool_)


def _aurc(run: RunFolder, method: str) -> str:
    found = run.by_key.get((method, "test", "aurc"))
    return "not measured" if found is None else f"{found.value:.4f}"
