"""What the commands of all studies share: which images, where to, and how they end."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from goen.cli.options import OptionalPath
from goen.cli.tables import print_table
from goen.data.protocol import Protocol, protocol
from goen.progress import warn
from goen.report.table import write_tables
from goen.report.tables import study_tables
from goen.results import Result, Stages


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
        """The sets, fetched where they may be; what cannot be had is said."""
        return protocol(
            self.data, data_dir=self.data_dir, download=True, extra=self.extra, warn=warn
        )

    def folder(self, study: str = "") -> Path:
        """The run's folder."""
        return self.out or Path("runs") / (f"{self.data}-{study}" if study else self.data)

    def finished(self, folder: Path) -> Stages:
        """The work that studies share."""
        return Stages(self.stages or folder.parent / "stages")


def conclude(folder: Path, results: Sequence[Result], *, as_json: bool) -> None:
    """Write a study's tables and its report, and print the tables or the results."""
    summary = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    tables = study_tables(results, summary)
    write_tables(tables, folder / "tables")
    from goen.report import write_report  # Matplotlib: not before there is something to draw

    page = write_report(folder)
    if as_json:
        for result in results:
            sys.stdout.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
        return
    for table in tables:
        print_table(table)
    print(f"tables:  {folder / 'tables'} (Markdown, LaTeX, CSV)")
    print(f"results: {folder / 'results.jsonl'}")
    print(f"report:  {page.resolve()}")
