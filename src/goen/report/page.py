"""Writes the report of any study: one self-contained HTML page, its figures and its tables."""

import base64
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import jinja2
from markupsafe import Markup
from safetensors import SafetensorError

from goen.errors import ArtifactError
from goen.escaping import visible
from goen.files import check_free, make_folder, own_files, storage_errors, whole_file
from goen.report.blocks import Drawing, Gallery, Page, Photographs
from goen.report.figures.style import DARK_PAPER, follow_colour_scheme, save_figure
from goen.report.provenance import provenance
from goen.report.registry import REPORTS, study_tables
from goen.report.run_folder import read_run
from goen.report.table import write_tables
from goen.report.watch import watch_page
from goen.report.watch_folder import is_watch, read_watch
from goen.runs.recognise import REPORT


def write_page(folder: Path, beside: Sequence[Path]) -> Path:
    """See ``goen.report.write_report``."""
    check_free(folder / "report.html", REPORT)
    if is_watch(folder):
        return _write(folder, watch_page(read_watch(folder)), {})
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
    return _write(folder, page, run.summary.left_out)


def _write(folder: Path, page: Page, left_out: Mapping[str, str]) -> Path:
    """Write figures, tables and page into the folder."""
    drawn = _draw(_drawings(page), folder / "figures")
    write_tables(page.tables(), folder / "tables")
    script = resources.files("goen.report").joinpath("templates", "page.js").read_text("utf-8")
    text = (
        _environment()
        .get_template("page.html")
        .render(
            policy=Markup(_policy(script)),
            script=Markup(script),
            dark_paper=DARK_PAPER,
            title=page.title,
            summary=page.summary,
            left_out=left_out,
            sections=page.sections,
            drawn=drawn,
            photographs={path: _embedded(path.read_bytes(), "png") for path in _photographs(page)},
        )
    )
    with whole_file(folder / "report.html", REPORT) as temporary:
        temporary.write_text(visible(text), encoding="utf-8")
    return folder / "report.html"


def _draw(drawings: Sequence[Drawing], folder: Path) -> dict[str, str]:
    """Write each figure in place of earlier ones; the figures as data URLs, by name."""
    drawn = {}
    make_folder(folder)
    with storage_errors(folder), TemporaryDirectory(dir=folder, prefix=".") as temporary:
        for drawing in drawings:
            svg = save_figure(drawing.figure, Path(temporary), drawing.name)
            drawn[drawing.name] = _embedded(follow_colour_scheme(svg).encode(), "svg+xml")
        files = {file.name: file for file in Path(temporary).iterdir()}
        with own_files(folder, files) as ours:
            for name, file in files.items():
                with whole_file(folder / name, ours) as place:
                    shutil.move(file, place)  # figures/ may be a link to another disk
    return drawn


def _drawings(page: Page) -> list[Drawing]:
    return [d for block in page.blocks() if isinstance(block, Gallery) for d in block.drawings]


def _photographs(page: Page) -> list[Path]:
    blocks = [block for block in page.blocks() if isinstance(block, Photographs)]
    return [path for block in blocks for path, _ in block.files]


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


def _embedded(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
