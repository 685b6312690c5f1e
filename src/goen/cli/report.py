"""``goen report``: the report, tables and figures of a finished run."""

from pathlib import Path
from typing import Annotated

import tyro

from goen.cli.options.types import OptionalPath
from goen.cli.output.console import note
from goen.errors import UsageError
from goen.io.files import folder_kind
from goen.report import write_board, write_paper, write_report
from goen.report.paper_tables import paper_tables, read_papers_study
from goen.report.summary import Study, read_study
from goen.report.table import markdown


def report_command(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    with_: Annotated[
        tuple[Path, ...],
        tyro.conf.arg(name="with", metavar="[FOLDER ...]", help_behavior_hint=""),
    ] = (),
    paper: bool = False,
    board: bool = False,
    out: OptionalPath = None,
) -> int:
    """Write the report of a finished run: one self-contained HTML file, figures and tables.

    Works for every study and for the folder of goen watch. Writes report.html, figures/ (SVG, PNG,
    PDF) and tables/ (Markdown, LaTeX, CSV) to the folder of the run. Nothing is trained or
    evaluated again. With --paper it prints Tables 1 to 3 of the GOEN paper instead, in the paper's
    layout, its numbers above yours, and writes them as a page. With --board it puts the methods of
    several goen bench side by side, by network: mean rank, near and far AUROC, cost and needs.

    For example: goen report runs/digits
                 goen report runs/watch
                 goen report runs/digits --with runs/digits-ablate runs/digits-seeds
                 goen report --paper runs/cifar10-bench --with runs/cifar10-ablate
                 goen report --paper results/cifar10/ablate-42.jsonl --out paper  (kept results)
                 goen report --board runs/mine --with runs/other --out board

    Args:
        run: the folder of a finished goen run, bench, ablate, seeds, robust or geometry, or of goen
            watch.
        with_: folders of goen ablate, seeds and geometry, to add the five-panel figure; with
            --paper, all other studies that fill its tables; with --board, further goen bench.
        paper: print the paper's tables as Markdown, and write them to a folder (HTML, Markdown,
            LaTeX, CSV). Table 1 is made from goen bench, Table 2 from goen ablate, Table 3 from
            goen seeds, all with --data cifar10.
        board: write the methods of these studies of goen bench side by side to a folder
            (board.html, which sorts and filters, Markdown, LaTeX, CSV).
        out: with --paper or --board, the folder of the tables (default: paper/ or board/ in the
            folder of the run; with --paper none for kept results).
    """
    if paper and board:
        raise UsageError("--paper and --board are two pages: ask for one of them.")
    if paper:
        return _print_paper_tables((run, *with_), out)
    if board:
        return _write_board((run, *with_), out)
    if out is not None:
        raise UsageError(
            f"--out {out} is the folder of the tables of --paper or --board. The report of a run "
            "is written into its folder: leave --out away, or add one of them."
        )
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


def _write_board(paths: tuple[Path, ...], out: Path | None) -> int:
    if out is None and not paths[0].is_dir():
        raise UsageError("The page of kept results needs a folder: add --out FOLDER.")
    studies: dict[str, Study] = {}
    for path in paths:
        name = path.resolve().name if path.is_dir() else path.stem  # of "." that of the folder
        if name in studies:
            raise UsageError(f"Two studies are called {name}: give them folders of other names.")
        studies[name] = read_study(path)
        if studies[name].summary.study != "bench":
            raise UsageError(
                f"{path} is of goen {studies[name].summary.study}; --board compares goen bench."
            )
    page = write_board(studies, out or paths[0] / "board")
    print(f"page: {page.resolve()}")
    return 0


def _print_paper_tables(paths: tuple[Path, ...], out: Path | None) -> int:
    studies = [read_papers_study(path) for path in paths]
    print("\n".join(map(markdown, paper_tables(studies))), end="")
    if out is None and paths[0].is_dir():
        out = paths[0] / "paper"
    if out is not None:
        page = write_paper(studies, out)
        note(f"tables: {out} (Markdown, LaTeX, CSV)")
        note(f"page:   {page.resolve()}")
    return 0
