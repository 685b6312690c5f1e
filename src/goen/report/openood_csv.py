"""Results as OpenOOD's evaluator writes them: its rows, columns, units and spread."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from goen.data.protocols.openood import find_benchmark
from goen.errors import ArtifactError
from goen.io.results import Result

# Its column, and the metric of goen that it is: OOD is positive, areas are by trapezoid.
_COLUMNS = {
    "FPR@95": "fpr95_ood_positive",
    "AUROC": "auroc",
    "AUPR_IN": "aupr_in_trapezoid",
    "AUPR_OUT": "aupr_out_trapezoid",
}
COLUMNS = (*_COLUMNS, "ACC")
OpenOodRows = dict[str, dict[str, float]]
"""Per cent by row and column, in OpenOOD's order."""


def openood_rows(
    results: Iterable[Result], method: str, benchmark: str, only: Sequence[str] = ()
) -> OpenOodRows:
    """The rows of one method: each OOD set, near before far, and the mean of each group.

    Args:
        results: of a comparison on this benchmark.
        method: its key.
        benchmark: of OpenOOD.
        only: these OOD sets, if any are named; a group without one has no row.

    Raises:
        ArtifactError: a set is missing.
    """
    found = {(r.dataset, r.metric): r.value for r in results if r.method == method}
    sets, rows = find_benchmark(benchmark), OpenOodRows()
    try:
        accuracy = 100 * found["test", "accuracy"]
        for group, every in (("nearood", sets.near), ("farood", sets.far)):
            members = [name for name in every if not only or name in only]
            for name in members:
                rows[name] = {
                    column: 100 * found[name, metric] for column, metric in _COLUMNS.items()
                } | {"ACC": accuracy}
            if members:
                rows[group] = {
                    column: fmean(rows[name][column] for name in members) for column in COLUMNS
                }
    except KeyError as error:
        raise ArtifactError(
            f"{method} has no result {error} of the benchmark {benchmark}."
        ) from error
    return rows


def openood_csv(methods: Mapping[str, Sequence[OpenOodRows]]) -> str:
    """The rows of every method as CSV, in per cent with two decimals.

    Of several runs each cell is the mean ± the population standard deviation, as on the board.

    Args:
        methods: by name, the rows of each run.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "dataset", *COLUMNS])
    for method, runs in methods.items():
        for name in runs[0]:
            cells = [spread([run[name][column] for run in runs]) for column in COLUMNS]
            writer.writerow([method, name, *cells])
    return text.getvalue()


def spread(values: Sequence[float]) -> str:
    """One value with two decimals, or the mean ± the population standard deviation of several.

    Example:
        >>> spread([90.0]), spread([90.0, 92.0])
        ('90.00', '91.00 ± 1.00')
    """
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{fmean(values):.2f} ± {pstdev(values):.2f}"
