"""Writes the report of any study: one self-contained HTML page, its figures and its tables."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup
from safetensors import SafetensorError

from goen.data.data_urls import data_url
from goen.errors import ArtifactError
from goen.escaping import visible
from goen.files import check_free, own_files, whole_file
from goen.report.blocks import Drawing, Gallery, Page
from goen.report.figures.style import DARK_PAPER, as_svg, drawn, follow_colour_scheme
from goen.report.provenance import provenance
from goen.report.registry import REPORTS, study_tables
from goen.report.run_folder import read_run
from goen.report.table import write_tables
from goen.report.wall import Wall
from goen.report.watch import watch_page
from goen.report.watch_folder import is_watch, read_watch
from goen.runs.recognise import REPORT


def write_page(folder: Path, beside: Sequence[Path]) -> Path:
    """See ``goen.report.write_report``."""
    check_free(folder / "report.html", REPORT)
    if is_watch(folder):
        return _write_folder(folder, watch_page(read_watch(folder)), {})
    run = read_run(folder, beside)
    study = run.summary.study
    if study not in REPORTS:
        raise ArtifactError(
            f"{folder} holds a study called {study!r}, which this version of goen cannot report. "
            f"It can report {', '.join(REPORTS)}. Was it written by a later version?"
        )
    try:
        page = REPORTS[study].page(run, study_tables(run.results, run.summary))
        page = replace(page, sections=[*page.sections, provenance(run)])
    except (LookupError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise ArtifactError(
            f"{folder} cannot be reported: something in it is missing or damaged "
            f"({type(error).__name__}: {error}). Run the same command again: it repeats only what "
            "is not finished."
        ) from error
    return _write_folder(folder, page, run.summary.left_out)


def _write_folder(folder: Path, page: Page, left_out: Mapping[str, str]) -> Path:
    """Write figures, tables and page into the folder."""
    figures = _draw(_drawings(page), folder / "figures")
    write_tables(page.tables(), folder / "tables")
    path = folder / "report.html"
    _write(page, figures, path, left_out)
    return path


def write_single_page(page: Page, path: Path) -> None:
    """Write a page that is one file, with its figures in it, in place of an earlier report."""
    figures = {drawing.name: _svg_url(as_svg(drawing.figure)) for drawing in _drawings(page)}
    _write(page, figures, path, {})


def _write(page: Page, figures: Mapping[str, str], path: Path, left_out: Mapping[str, str]) -> None:
    """Write the HTML.

    Args:
        page: what it shows.
        figures: its figures as data URLs, by name.
        path: of the file.
        left_out: what is missing, with the reason.
    """
    has_wall = any(isinstance(block, Wall) for block in page.blocks())
    script = _template("page.js")
    if has_wall:
        script += _template("rates.js") + _template("wall.js")
    text = (
        _environment()
        .get_template("page.html")
        .render(
            policy=Markup(_policy(script)),
            script=Markup(script),
            style=Markup(_template("wall.css") if has_wall else ""),
            dark_paper=DARK_PAPER,
            title=page.title,
            summary=page.summary,
            left_out=left_out,
            sections=page.sections,
            drawn=figures,
        )
    )
    with whole_file(path, REPORT) as temporary:
        temporary.write_text(visible(text), encoding="utf-8")


def _template(name: str) -> str:
    return resources.files("goen.report").joinpath("templates", name).read_text("utf-8")


def _draw(drawings: Sequence[Drawing], folder: Path) -> dict[str, str]:
    """Write each figure in place of earlier ones; the figures as data URLs, by name."""
    forms = {drawing.name: drawn(drawing.figure) for drawing in drawings}
    files = {f"{name}.{form}": forms[name][form] for name in forms for form in forms[name]}
    with own_files(folder, files) as ours:
        for name, content in files.items():
            with whole_file(folder / name, ours) as place:
                place.write_bytes(content)
    return {name: _svg_url(form["svg"].decode()) for name, form in forms.items()}


def _drawings(page: Page) -> list[Drawing]:
    return [d for block in page.blocks() if isinstance(block, Gallery) for d in block.drawings]


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
