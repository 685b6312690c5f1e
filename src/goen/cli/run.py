"""``goen run``: train a classifier, fit and evaluate its gate, write a report."""

from pathlib import Path
from typing import Annotated

import tyro

from goen.cli.print_table import print_table
from goen.cli.study import StudyOptions, run_on_ranks, write_tables_and_report
from goen.data.protocol import Protocol
from goen.report.table import Table
from goen.runs.results import Result, read_results
from goen.studies import RunConfig, run


def run_command(
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008  (frozen)
    options: Annotated[StudyOptions, tyro.conf.arg(name="")] = StudyOptions(),  # noqa: B008
) -> int:
    """Train a classifier, fit and calibrate its gate, evaluate it and write a report.

    Without options it runs on embedded digits, offline, in about a minute. Finished steps are
    cached: after an interruption, the same command continues where it stopped. Under torchrun the
    processes share every batch of the training.

    For example: goen run
                 goen run --data cifar10              (about 45 minutes on two cores)
                 goen run --calibration-ood none      (fitted without OOD images)
                 torchrun --nproc-per-node 2 -m goen run        (trained by two processes)

    Args:
        config: network, training and gate.
        options: datasets and folders.
    """
    folder = options.run_folder()

    def work(datasets: Protocol) -> tuple[list[Result], list[Table], Path]:
        run(config, datasets, folder, options.shared_stages(folder))
        results = read_results(folder / "results.jsonl")
        return results, *write_tables_and_report(folder, results)

    done = run_on_ranks(options, folder, work)
    if done is None:
        return 0
    results, tables, page = done
    for table in tables:
        if table.name in ("auroc", "flagged"):
            print_table(table)
    accuracy = next(r.value for r in results if (r.dataset, r.metric) == ("test", "accuracy"))
    print(f"accuracy on test images: {accuracy:.2%}\n")
    print(f"gate:   {folder / 'gate'}   (goen score PICTURES --gate {folder})")
    print(f"report: {page.resolve()}")
    return 0
