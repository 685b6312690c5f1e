"""How each study is reported: its tables, and its page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from goen.report.ablate import ablate_page, ablate_tables
from goen.report.bench import bench_page, bench_tables
from goen.report.blocks import Page
from goen.report.geometry import geometry_page, geometry_tables
from goen.report.robust import robust_page, robust_tables
from goen.report.run import run_page, run_tables
from goen.report.run_folder import RunFolder
from goen.report.seeds import seeds_page, seeds_tables
from goen.report.summary import Summary
from goen.report.table import Table
from goen.runs.results import Result


@dataclass(frozen=True)
class StudyReport:
    """The report of one study.

    Attributes:
        tables: made from its results and its summary alone.
        page: made from its folder and its tables.
    """

    tables: Callable[[Sequence[Result], Summary], list[Table]]
    page: Callable[[RunFolder, Sequence[Table]], Page]


REPORTS: Mapping[str, StudyReport] = {
    "run": StudyReport(run_tables, run_page),
    "bench": StudyReport(bench_tables, bench_page),
    "ablate": StudyReport(ablate_tables, ablate_page),
    "seeds": StudyReport(seeds_tables, seeds_page),
    "robust": StudyReport(robust_tables, robust_page),
    "geometry": StudyReport(geometry_tables, geometry_page),
}
"""By the name of the study."""


def study_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """The tables of the study that wrote these results; those without rows are left out."""
    tables = REPORTS[summary.study].tables(results, summary)
    return [table for table in tables if table.rows]
