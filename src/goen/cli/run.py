"""``goen run``: train, fit, calibrate, evaluate, report."""

from collections.abc import Sequence
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from goen.cli.study import Place
from goen.results import Result, read_results
from goen.studies import RunConfig, run


def main(argv: Sequence[str]) -> int:
    """Parse and run."""
    code: int = tyro.cli(main_job, prog="goen run", args=list(argv))
    return code


def main_job(
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008  (frozen)
    place: Annotated[Place, tyro.conf.arg(name="")] = Place(),  # noqa: B008
) -> int:
    """Train a classifier, fit its gate, calibrate it, evaluate it and write a report.

    Without options it runs on the embedded digits, in about a minute and without a network. The
    same command again goes on where it was interrupted and repeats nothing that is finished.

    For example: goen run
                 goen run --data cifar10            (about 45 minutes on two cores)
                 goen run --calibration none        (no OOD image is used for anything)

    Args:
        config: what to do.
        place: on which images, and where.
    """
    folder = place.folder()
    run(config, place.protocol(), folder, place.finished(folder))
    from goen.report import write_report  # Matplotlib: not before there is something to draw

    page = write_report(folder)
    print_table(read_results(folder / "results.jsonl"))
    print(f"gate:   {folder / 'gate'}   (goen score PICTURES --gate {folder})")
    print(f"report: {page.resolve()}")
    return 0


def print_table(results: list[Result]) -> None:
    """AUROC by score and set, with what the gate flagged."""
    sets = list(dict.fromkeys(r.dataset for r in results if r.group != "id"))
    by_key = {(r.method, r.dataset, r.metric): r for r in results}
    protocol_name = results[0].protocol
    accuracy = by_key["classifier", "test", "accuracy"].value
    title = f"AUROC [95 % interval], protocol {protocol_name}; accuracy {accuracy:.2%}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("score", no_wrap=True)
    for name in sets:
        group = next(r.group for r in results if r.dataset == name)
        seen = any(r.seen_in_calibration for r in results if r.dataset == name)
        table.add_column(f"{name}\n({group}{', seen' if seen else ''})", justify="right")
    for method in dict.fromkeys(r.method for r in results if r.metric == "auroc"):
        cells = [by_key[method, name, "auroc"] for name in sets]
        table.add_row(method, *(f"{c.value:.4f}\n[dim]{c.low:.3f}-{c.high:.3f}[/]" for c in cells))
    flagged = [by_key["gate", name, "flagged"].value for name in sets]
    table.add_section()
    table.add_row("flagged", *(f"{share:.1%}" for share in flagged))
    Console().print(table)
    alarms = by_key["gate", "test", "false_alarm_rate"].value
    print(f"of the known test images, {alarms:.1%} were flagged\n")
