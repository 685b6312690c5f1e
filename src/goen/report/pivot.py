"""Tables of one metric by any two properties of the results; what was not measured says so."""

from collections.abc import Callable, Iterable, Sequence

from goen.report.run_folder import RunFolder
from goen.report.table import Cell, Row, Table, marked
from goen.runs.results import Result

Key = Callable[[Result], str]


def pivot(
    name: str,
    title: str,
    results: Iterable[Result],
    *,
    row: Key,
    column: Key,
    section: Key = lambda _: "",
    form: str = ".4f",
    higher_is_better: bool | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """The results as a table; a pair that no result has is ``n/a``, and a note says so.

    Args:
        name: of its files.
        title: above it.
        results: one per cell.
        row: which row a result stands in.
        column: which column.
        section: which section its row stands in.
        form: how numbers are written.
        higher_is_better: the best of each column is marked, unless neither is better.
        notes: below it.
    """
    found = {(section(r), row(r), column(r)): r for r in results}
    lines = list(dict.fromkeys(key[:2] for key in found))
    columns = list(dict.fromkeys(key[2] for key in found))
    cells = {c: [_cell(found.get((*line, c)), form) for line in lines] for c in columns}
    if higher_is_better is not None:
        cells = {
            c: marked(column_cells, higher_is_better=higher_is_better)
            for c, column_cells in cells.items()
        }
        notes = ["Bold: best of its column.", *notes]
    if len(found) < len(lines) * len(columns):
        notes = [*notes, "n/a: not measured. Nothing is filled in."]
    rows = [
        Row(label, tuple(cells[c][place] for c in columns), part)
        for place, (part, label) in enumerate(lines)
    ]
    return Table(name, title, tuple(columns), tuple(rows), tuple(notes))


def _cell(result: Result | None, form: str) -> Cell:
    if result is None:
        return Cell(None, form)
    seen = result.seen_in_calibration
    return Cell(result.value, form, low=result.low, high=result.high, seen=seen)


_CLASSIFIER = {"accuracy": "accuracy", "ece": "ECE (15 bins)", "nll": "NLL", "brier": "Brier"}


def classifier_table(run: RunFolder) -> Table:
    """What the classifier of the main job is worth."""
    return pivot(
        "classifier",
        "The classifier on the test images",
        [r for r in run.results if r.method == "classifier" and r.metric in _CLASSIFIER],
        row=lambda r: r.dataset,
        column=lambda r: _CLASSIFIER[r.metric],
    )


def aupr_table(run: RunFolder) -> Table:
    """Average precision with OOD as the positive class."""
    return pivot(
        "aupr_out",
        "AUPR, OOD positive: depends on the share of OOD among the images",
        [r for r in run.results if r.metric == "aupr_out"],
        row=lambda r: run.label(r.method),
        column=lambda r: f"{r.dataset} ({r.group})",
        higher_is_better=True,
    )


def probability_table(run: RunFolder) -> Table:
    """How well the head's probability of OOD is calibrated."""
    return pivot(
        "ood_probability",
        "Calibration of the probability of OOD, at this share of OOD",
        [r for r in run.results if r.metric.startswith("ood_")],
        row=lambda r: f"{r.dataset} ({r.group})",
        column=lambda r: r.metric.removeprefix("ood_"),
    )
