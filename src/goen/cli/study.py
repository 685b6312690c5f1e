"""What the commands of all studies share: which images, where to, and how they end."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from goen.cli.options import OptionalPath
from goen.cli.print_table import print_table
from goen.data.protocol import Protocol, protocol
from goen.report.table import Table
from goen.runs.results import Result
from goen.runs.stages import Stages, alone_in, check_run_folder


@dataclass(frozen=True)
class Place:
    """Which images, and where the run goes.

    Attributes:
        data: the protocol: embedded digits, or CIFAR-10 as in the paper.
        extra: further sets to evaluate on: tiny-imagenet mnist textures places cifar100-rest.
        out: the run's folder (default runs/DATA, or runs/DATA-STUDY).
        stages: where finished work is kept for all studies (default: stages/ beside the run).
        data_dir: a folder that holds image sets (else GOEN_DATA).
    """

    data: Literal["digits", "cifar10"] = "digits"
    extra: tuple[str, ...] = ()
    out: OptionalPath = None
    stages: OptionalPath = None
    data_dir: OptionalPath = None

    def protocol(self) -> Protocol:
        """The image sets; missing ones are downloaded or, failing that, skipped with a warning."""
        return protocol(self.data, data_dir=self.data_dir, download=True, extra=self.extra)

    def folder(self, study: str = "") -> Path:
        """The run's folder."""
        return self.out or Path("runs") / (f"{self.data}-{study}" if study else self.data)

    def finished(self, folder: Path) -> Stages:
        """The work that studies share."""
        return Stages(self.stages or folder.parent / "stages")


def carry_out(
    place: Place,
    study: str,
    work: Callable[[Protocol, Path, Stages], Sequence[Result]],
    *,
    as_json: bool,
) -> int:
    """Do the study, write its tables and its report, and print the tables or the results."""
    folder = place.folder(study)
    check_run_folder(folder)  # before sets are fetched
    images = place.protocol()
    with alone_in(folder):  # to the end: nobody else's numbers may come between
        results = work(images, folder, place.finished(folder))
        tables, page = report_study(folder, results)
    if as_json:
        for result in results:
            sys.stdout.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
        return 0
    for table in tables:
        print_table(table)
    print(f"tables:  {folder / 'tables'} (Markdown, LaTeX, CSV)")
    print(f"results: {folder / 'results.jsonl'}")
    print(f"report:  {page.resolve()}")
    return 0


def report_study(folder: Path, results: Sequence[Result]) -> tuple[list[Table], Path]:
    """The tables of a finished study, and its report."""
    # Matplotlib is imported when there is something to draw.
    from goen.report import write_report
    from goen.report.registry import study_tables
    from goen.report.summary import read_summary

    return study_tables(results, read_summary(folder)), write_report(folder)
