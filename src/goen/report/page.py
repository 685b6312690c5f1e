"""Writes the report of any study: one self-contained HTML page, its figures and its tables."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup
from safetensors import SafetensorError

from goen.data.images.data_urls import data_url
from goen.errors import ArtifactError
from goen.escaping import visible
from goen.io.files import check_free, whole_file, whole_folder
from goen.io.results import Result
from goen.io.stages import RUN
from goen.monitor.keeping import WATCH
from goen.report.blocks import Drawing, FigureRow, Page
from goen.report.figures.style import DARK_PAPER, as_svg, drawn, follow_colour_scheme
from goen.report.gallery import Gallery
from goen.report.pages.bench import ablate_page, ablate_tables, bench_page, bench_tables
from goen.report.pages.geometry import geometry_page, geometry_tables
from goen.report.pages.robust import robust_page, robust_tables
from goen.report.pages.run import run_page, run_tables
from goen.report.pages.seeds import seeds_page, seeds_tables
from goen.report.pages.watch import watch_page
from goen.report.provenance import provenance
from goen.report.run_folder import RunFolder, read_run
from goen.report.summary import Summary
from goen.report.table import Table, write_tables
from goen.report.watch_folder import is_watch, read_watch


@dataclass(frozen=True)
class StudyReport:
    """The report of one study.

    Attributes:
        tables: made from its results and its summary alone.
        page: made from its folder and its tables.
    """

    tables: Callable[[Sequence[Result], Summary], list[Table]]
    page: Callable[[RunFolder, Sequence[Table]], Page]


REPORTS: Mapping[str, StudyReport] = {
    "run": StudyReport(run_tables, run_page),
    "bench": StudyReport(bench_tables, bench_page),
    "ablate": StudyReport(ablate_tables, ablate_page),
    "seeds": StudyReport(seeds_tables, seeds_page),
    "robust": StudyReport(robust_tables, robust_page),
    "geometry": StudyReport(geometry_tables, geometry_page),
}
"""By the name of the study."""


def study_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """The tables of the study that wrote these results; those without rows are left out."""
    tables = REPORTS[summary.study].tables(results, summary)
    return [table for table in tables if table.rows]


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        path: of its page.
        results: what it was made from; none of a watched stream.
        tables: of the results; those without rows are left out.
    """

    path: Path
    results: Sequence[Result]
    tables: Sequence[Table]


def write_page(folder: Path, beside: Sequence[Path] = ()) -> Report:
    """See ``goen.report.write_report``."""
    if is_watch(folder):
        return Report(_write_folder(folder, watch_page(read_watch(folder)), {}), (), ())
    run = read_run(folder, beside)
    study = run.summary.study
    if study not in REPORTS:
        raise ArtifactError(
            f"{folder} holds a study called {study!r}, which this version of goen cannot report. "
            f"It can report {', '.join(REPORTS)}. Was it written by a later version?"
        )
    try:
        tables = study_tables(run.results, run.summary)
        page = REPORTS[study].page(run, tables)
        page = replace(page, sections=[*page.sections, provenance(run)])
    except (LookupError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise ArtifactError(
            f"{folder} cannot be reported: something in it is missing or damaged "
            f"({type(error).__name__}: {error}). Run the same command again: it repeats only what "
            "is not finished."
        ) from error
    return Report(_write_folder(folder, page, run.summary.left_out), run.results, tables)


def _write_folder(folder: Path, page: Page, left_out: Mapping[str, str]) -> Path:
    """Write figures, tables and page into the folder."""
    check_free(folder, WATCH if is_watch(folder) else RUN, overwrite=True)
    figures = _draw(_drawings(page), folder / "figures")
    write_tables(page.tables(), folder / "tables")
    path = folder / "report.html"
    _write(page, figures, path, left_out, overwrite=True)
    return path


def write_single_page(page: Page, path: Path, *, overwrite: bool = False) -> None:
    """Write a page that is one file, with its figures in it."""
    figures = {drawing.name: _svg_url(as_svg(drawing.figure)) for drawing in _drawings(page)}
    _write(page, figures, path, {}, overwrite=overwrite)


def _write(
    page: Page,
    figures: Mapping[str, str],
    path: Path,
    left_out: Mapping[str, str],
    *,
    overwrite: bool,
) -> None:
    """Write the HTML.

    Args:
        page: what it shows.
        figures: its figures as data URLs, by name.
        path: of the file.
        left_out: what is missing, with the reason.
        overwrite: whether a file there may be replaced.
    """
    has_gallery = any(isinstance(block, Gallery) for block in page.blocks())
    script = _template("page.js")
    if has_gallery:
        script += _template("rates.js") + _template("gallery.js")
    text = (
        _environment()
        .get_template("page.html")
        .render(
            policy=Markup(_policy(script)),
            script=Markup(script),
            style=Markup(_template("gallery.css") if has_gallery else ""),
            dark_paper=DARK_PAPER,
            title=page.title,
            summary=page.summary,
            left_out=left_out,
            sections=page.sections,
            drawn=figures,
        )
    )
    with whole_file(path, overwrite=overwrite) as temporary:
        temporary.write_text(visible(text), encoding="utf-8")


def _template(name: str) -> str:
    return resources.files("goen.report").joinpath("templates", name).read_text("utf-8")


def _draw(drawings: Sequence[Drawing], folder: Path) -> dict[str, str]:
    """Write each figure in place of earlier ones; the figures as data URLs, by name."""
    forms = {drawing.name: drawn(drawing.figure) for drawing in drawings}
    with whole_folder(folder, "figures", overwrite=True) as temporary:
        for name, contents in forms.items():
            for form, content in contents.items():
                (temporary / f"{name}.{form}").write_bytes(content)
    return {name: _svg_url(form["svg"].decode()) for name, form in forms.items()}


def _drawings(page: Page) -> list[Drawing]:
    return [d for block in page.blocks() if isinstance(block, FigureRow) for d in block.drawings]


def _svg_url(svg: str) -> str:
    return data_url(follow_colour_scheme(svg).encode(), "svg+xml")


def _policy(script: str) -> str:
    """The page's content security policy: nothing from outside, and no script but this one."""
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"default-src 'none'; {allowed}"


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("goen.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
