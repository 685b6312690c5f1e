"""``goen report``: the report, tables and figures of a finished run."""

from pathlib import Path
from typing import Annotated

import tyro

from goen.errors import UsageError
from goen.io.files import folder_kind
from goen.report import write_report


def report_command(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    with_: Annotated[
        tuple[Path, ...],
        tyro.conf.arg(name="with", metavar="[FOLDER ...]", help_behavior_hint=""),
    ] = (),
) -> int:
    """Write the report of a finished run: one self-contained HTML file, figures and tables.

    Works for every study and for the folder of goen watch. Writes report.html, figures/ (SVG, PNG,
    PDF) and tables/ (Markdown, LaTeX, CSV) to the folder of the run. Nothing is trained or
    evaluated again.

    For example: goen report runs/digits
                 goen report runs/watch
                 goen report runs/digits --with runs/digits-ablate runs/digits-seeds

    Args:
        run: the folder of a finished goen run, bench, ablate, seeds, robust or geometry, or of goen
            watch.
        with_: folders of goen ablate, seeds and geometry, to add the paper's five-panel figure.
    """
    if folder_kind(run) == "gate":
        raise UsageError(
            f"{run} is a gate, and goen report is for runs. goen fit wrote the page of its gate "
            "into the folder: report.html."
        )
    page = write_report(run, beside=with_)
    print(f"figures: {run / 'figures'} (SVG, PNG, PDF)")
    print(f"tables:  {run / 'tables'} (Markdown, LaTeX, CSV)")
    print(f"report:  {page.resolve()}")
    return 0
