"""What the commands of all studies share: datasets, folders, tables and the report."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

from goen.cli.options import OptionalPath, SomeNames
from goen.cli.print_table import print_table
from goen.data.protocol import Protocol, protocol
from goen.report.table import Table
from goen.runs.results import Result
from goen.runs.stages import Stages, alone_in, check_run_folder
from goen.training import help_training
from goen.training.distributed import join_ranks

Done = TypeVar("Done")


@dataclass(frozen=True)
class StudyOptions:
    """Datasets and folders of a study.

    Attributes:
        data: digits that ship with scikit-learn, or CIFAR-10 and its OOD sets as in the paper.
        extra: with cifar10, further OOD sets: tiny-imagenet mnist textures places cifar100-rest,
            the last being the other fifty classes of CIFAR-100.
        out: the folder of the run (default: runs/DATA for goen run, else runs/DATA-COMMAND).
        stages: the cache of finished stages, shared by all studies (default: stages/ beside the
            folder of the run).
        data_dir: a folder of datasets (default: the environment variable GOEN_DATA).
    """

    data: Literal["digits", "cifar10"] = "digits"
    extra: SomeNames = ()
    out: OptionalPath = None
    stages: OptionalPath = None
    data_dir: OptionalPath = None

    def load_protocol(self) -> Protocol:
        """The datasets; missing ones are downloaded where possible, else skipped with a warning."""
        return protocol(self.data, data_dir=self.data_dir, download=True, extra=self.extra)

    def run_folder(self, study: str = "") -> Path:
        """The folder of the run."""
        return self.out or Path("runs") / (f"{self.data}-{study}" if study else self.data)

    def shared_stages(self, folder: Path) -> Stages:
        """The cache of finished stages."""
        return Stages(self.stages) if self.stages else Stages.beside(folder)


def run_on_ranks(
    options: StudyOptions, folder: Path, work: Callable[[Protocol], Done]
) -> Done | None:
    """Do the work in this folder, held to the end: no other process may write results in between.

    Of several processes that torchrun started the first does it; the others take their share of its
    trainings, and ``None`` is their result.
    """
    with join_ranks() as ranks:
        if ranks.rank:
            ranks.broadcast()  # datasets that had to be downloaded are here now
            help_training(options.load_protocol().train)
            return None
        check_run_folder(folder)  # before datasets are downloaded
        datasets = options.load_protocol()
        ranks.broadcast(True)
        with alone_in(folder):
            done = work(datasets)
        ranks.broadcast(None)
        return done


def run_study(
    options: StudyOptions,
    name: str,
    study: Callable[[Protocol, Path, Stages], Sequence[Result]],
    *,
    as_json: bool,
) -> int:
    """Run the study, write its tables and report, and print the tables, or the results as JSON."""
    folder = options.run_folder(name)

    def work(datasets: Protocol) -> tuple[Sequence[Result], list[Table], Path]:
        results = study(datasets, folder, options.shared_stages(folder))
        return results, *write_tables_and_report(folder, results)

    done = run_on_ranks(options, folder, work)
    if done is None:
        return 0
    results, tables, page = done
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


def write_tables_and_report(folder: Path, results: Sequence[Result]) -> tuple[list[Table], Path]:
    """Write the tables and the report of a finished study; the tables, and the report's path."""
    # Not before there is a result: these import Matplotlib.
    from goen.report import write_report
    from goen.report.registry import study_tables
    from goen.report.summary import read_summary

    return study_tables(results, read_summary(folder)), write_report(folder)
