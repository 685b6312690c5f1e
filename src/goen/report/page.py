"""Writes the report of any study: one self-contained HTML page, its figures and its tables."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import resources
from pathlib import Path

from markupsafe import Markup
from safetensors import SafetensorError

from goen.data.images.data_urls import data_url
from goen.errors import ArtifactError, describe_left_out
from goen.escaping import visible
from goen.io.files import check_free, whole_file, whole_folder
from goen.io.results import Result
from goen.io.stages import RUN
from goen.monitor.keeping import WATCH
from goen.report.blocks import Page
from goen.report.board import board_tables, networks
from goen.report.figures.style import DARK_PAPER, drawn, follow_colour_scheme
from goen.report.gallery import Gallery
from goen.report.pages.bench import ablate_page, ablate_tables, bench_page, bench_tables
from goen.report.pages.board import board_page
from goen.report.pages.evaluate import evaluate_page, evaluate_tables
from goen.report.pages.geometry import geometry_page, geometry_tables
from goen.report.pages.paper import paper_page
from goen.report.pages.robust import robust_page, robust_tables
from goen.report.pages.run import run_page, run_tables
from goen.report.pages.seeds import seeds_page, seeds_tables
from goen.report.pages.watch import is_watch, read_watch, watch_page
from goen.report.paper_tables import paper_tables
from goen.report.provenance import provenance
from goen.report.run_folder import RunFolder, read_run
from goen.report.summary import Study, Summary
from goen.report.table import Table, write_tables
from goen.report.texts import environment

REPORTS: Mapping[
    str,
    tuple[
        Callable[[Sequence[Result], Summary], list[Table]],
        Callable[[RunFolder, Sequence[Table]], Page],
    ],
] = {
    "run": (run_tables, run_page),
    "bench": (bench_tables, bench_page),
    "ablate": (ablate_tables, ablate_page),
    "seeds": (seeds_tables, seeds_page),
    "robust": (robust_tables, robust_page),
    "geometry": (geometry_tables, geometry_page),
    "evaluate": (evaluate_tables, evaluate_page),
}
"""By the name of the study: its tables, from its results alone, and its page."""


def study_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """The tables of the study that wrote these results; those without rows are left out."""
    make_tables, _ = REPORTS[summary.study]
    return [table for table in make_tables(results, summary) if table.rows]


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        path: of its page.
        results: what it was made from; none of a watched stream.
        tables: of the results; those without rows are left out.
        conclusion: of a comparison, in a sentence.
    """

    path: Path
    results: Sequence[Result]
    tables: Sequence[Table]
    conclusion: str = ""


def write_page(folder: Path, beside: Sequence[Path] = ()) -> Report:
    """See ``goen.report.write_report``."""
    if is_watch(folder):
        return Report(_write_folder(folder, watch_page(read_watch(folder))), (), ())
    run = read_run(folder, beside)
    study = run.summary.study
    if study not in REPORTS:
        raise ArtifactError(
            f"{folder} holds a study called {study!r}, which this version of goen cannot report. "
            f"It can report {', '.join(REPORTS)}. Was it written by a later version?"
        )
    try:
        tables = study_tables(run.results, run.summary)
        page = REPORTS[study][1](run, tables)
        sections = [*page.sections, provenance(run)]
        page = replace(page, sections=sections, left_out=describe_left_out(run.summary.left_out))
    except (LookupError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise ArtifactError(
            f"{folder} cannot be reported: something in it is missing or damaged "
            f"({type(error).__name__}: {error}). Run the same command again: it repeats only what "
            "is not finished."
        ) from error
    return Report(_write_folder(folder, page), run.results, tables, run.summary.conclusion)


def _write_folder(folder: Path, page: Page) -> Path:
    """Write figures, tables and page into the folder, in place of earlier ones."""
    check_free(folder, WATCH if is_watch(folder) else RUN, overwrite=True)
    figures = {drawing.name: drawn(drawing.figure) for drawing in page.drawings()}
    with whole_folder(folder / "figures", "figures", overwrite=True) as temporary:
        for name, contents in figures.items():
            for form, content in contents.items():
                (temporary / f"{name}.{form}").write_bytes(content)
    write_tables([b for b in page.blocks() if isinstance(b, Table)], folder / "tables")
    path = folder / "report.html"
    svgs = {name: contents["svg"] for name, contents in figures.items()}
    _write(page, svgs, path, overwrite=True)
    return path


def write_single_page(page: Page, path: Path, *, overwrite: bool = False) -> None:
    """Write a page that is one file, with its figures in it."""
    svgs = {drawing.name: drawn(drawing.figure, "svg")["svg"] for drawing in page.drawings()}
    _write(page, svgs, path, overwrite=overwrite)


def write_paper_folder(studies: Sequence[Study], folder: Path) -> Path:
    """See ``goen.report.write_paper``."""
    tables = paper_tables(studies)
    write_tables(tables, folder)
    path = folder / "paper.html"
    write_single_page(paper_page(tables, studies), path)
    return path


def write_board_folder(studies: Mapping[str, Study], folder: Path) -> Path:
    """See ``goen.report.write_board``."""
    boards = networks(studies)
    tables = board_tables(boards)
    write_tables(tables, folder)
    path = folder / "board.html"
    write_single_page(board_page(tables, boards, list(studies.values())), path)
    return path


def _write(page: Page, svgs: Mapping[str, bytes], path: Path, *, overwrite: bool) -> None:
    """Write the HTML.

    Args:
        page: what it shows.
        svgs: its figures, by name.
        path: of the file.
        overwrite: whether a file there may be replaced.
    """
    has_gallery = any(isinstance(block, Gallery) for block in page.blocks())
    scripts = ("page.js", "rates.js", "gallery.js") if has_gallery else ("page.js",)
    script = "".join(map(_template, scripts))
    text = (
        environment()
        .get_template("page.html")
        .render(
            script=Markup(script),
            script_sha256=base64.b64encode(sha256(script.encode()).digest()).decode(),
            style=Markup(_template("gallery.css") if has_gallery else ""),
            dark_paper=DARK_PAPER,
            page=page,
            urls={n: data_url(follow_colour_scheme(s), "svg+xml") for n, s in svgs.items()},
        )
    )
    with whole_file(path, overwrite=overwrite) as temporary:
        temporary.write_text(visible(text), encoding="utf-8")


def _template(name: str) -> str:
    return resources.files("goen.report").joinpath("templates", name).read_text("utf-8")
