"""The report of ``goen bench``: methods side by side, and what they cost."""

from collections.abc import Sequence

from goen.report.blocks import Page, number_of
from goen.report.comparison import Comparison
from goen.report.comparison_page import comparison_page
from goen.report.openood_board import board_table
from goen.report.run_folder import RunFolder
from goen.report.summary import Summary
from goen.report.table import Cell, Table
from goen.runs.results import Result


def bench_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """AUROC, both FPR95s, AUPR, the classifiers and the cost; of CIFAR-10 the board's means."""
    comparison = Comparison(results, summary)
    board = board_table(comparison)
    return [
        comparison.auroc(),
        *([] if board is None else [board]),
        *comparison.others(),
        comparison.classifiers(),
        _cost(comparison),
    ]


def _cost(comparison: Comparison) -> Table:
    rows = [comparison.by_key[m, "test", "training_seconds"] for m in comparison.methods]
    columns = {
        "training s": [Cell(r.value, ".0f") for r in rows],
        "fit and score s": [Cell(r.seconds, ".2f") for r in rows],
    }
    hardware = comparison.summary.hardware.items()
    machine = ", ".join(f"{name} {value}" for name, value in hardware) or "not recorded"
    note = (
        "Seconds. Training counts in full for every method, also where several share one network: "
        f"it is the cost of using that one method. The machine: {machine}."
    )
    return comparison.table("cost", "Cost", columns, note)


def bench_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """The comparison of the methods."""
    compared = number_of(len(run.titles), "method")
    return comparison_page(run, tables, title="Benchmark", compared=compared)
