"""The report of ``goen ablate``: variants side by side, and their differences."""

from collections.abc import Sequence

from markupsafe import Markup

from goen.report.blocks import Page, listed, number_of
from goen.report.comparison import Comparison
from goen.report.comparison_page import comparison_page
from goen.report.run_folder import RunFolder
from goen.report.summary import Summary
from goen.report.table import Table
from goen.runs.results import Result


def ablate_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """AUROC, the differences with their paired tests, both FPR95s, AUPR."""
    comparison = Comparison(results, summary)
    return [
        comparison.auroc(),
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
    ]


def ablate_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """The comparison of the variants."""
    variants = {title for title, _ in run.titles.values()}  # each has up to two rows
    scores = listed(list(dict.fromkeys(section for _, section in run.titles.values())))
    compared = Markup("{} ({})").format(number_of(len(variants), "variant"), scores)
    return comparison_page(run, tables, title="Ablation", compared=compared)
