"""``goen run``: train, fit, calibrate, evaluate, report."""

from typing import Annotated

import tyro

from goen.cli.print_table import print_table
from goen.cli.study import Place, report_study
from goen.runs.results import read_results
from goen.runs.stages import alone_in, check_run_folder
from goen.studies import RunConfig, run


def run_command(
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008  (frozen)
    place: Annotated[Place, tyro.conf.arg(name="")] = Place(),  # noqa: B008
) -> int:
    """Train a classifier, fit its gate, calibrate it, evaluate it and write a report.

    Without options it runs on the embedded digits, in about a minute and without a network. The
    same command again goes on where it was interrupted and repeats nothing that is finished.

    For example: goen run
                 goen run --data cifar10            (about 45 minutes on two cores)
                 goen run --calibration-ood none      (no OOD image is used for anything)

    Args:
        config: what to do.
        place: on which images, and where.
    """
    folder = place.folder()
    check_run_folder(folder)  # before sets are fetched
    images = place.protocol()
    with alone_in(folder):  # to the end: nobody else's numbers may come between
        run(config, images, folder, place.finished(folder))
        results = read_results(folder / "results.jsonl")
        tables, page = report_study(folder, results)
    for table in tables:
        if table.name in ("auroc", "flagged"):
            print_table(table)
    accuracy = next(r.value for r in results if (r.dataset, r.metric) == ("test", "accuracy"))
    print(f"accuracy on test images: {accuracy:.2%}\n")
    print(f"gate:   {folder / 'gate'}   (goen score PICTURES --gate {folder})")
    print(f"report: {page.resolve()}")
    return 0
