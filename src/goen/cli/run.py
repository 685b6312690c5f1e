"""``goen run``: train a classifier, fit and evaluate its gate, write a report."""

from functools import partial
from shlex import quote
from typing import Annotated

import tyro

from goen.cli.options.study import StudyOptions, run_study
from goen.cli.output.table import print_table
from goen.data.protocols.opening import LARGEST_SIDE, PRETRAINED_SIDE
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
                 goen run --data photos --ood screens  (your folders; a pretrained network)
                 goen run --data photos.toml --from-scratch
                 goen run --data cifar10              (about 45 minutes on two cores)
                 goen run --calibration-ood none      (fitted without OOD images)
                 goen run --data cifar10 --calibration-ood places noise augmented
                 torchrun --nproc-per-node 2 -m goen run        (trained by two processes)

    Args:
        config: network, training and gate.
        options: datasets and folders.
    """
    largest = PRETRAINED_SIDE if config.may_be_pretrained else LARGEST_SIDE
    report = run_study(options, "", partial(run, config), largest)
    if report is None:
        return 0
    folder = report.path.parent
    for table in report.tables:
        if table.name in ("auroc", "flagged"):
            print_table(table)
    numbers = {(r.dataset, r.metric): r.value for r in report.results}
    print(f"accuracy on test images: {numbers['test', 'accuracy']:.2%}\n")
    print(f"gate:   {folder / 'gate'}   (goen score IMAGES --gate {quote(str(folder))})")
    print(f"report: {report.path.resolve()}")
    return 0
