"""One self-contained HTML page about a run, whatever study it was."""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from goen.errors import ArtifactError
from goen.files import whole_file, whole_folder
from goen.report.blocks import Drawing, Gallery, Page, Photographs
from goen.report.figures.style import save
from goen.report.pages.comparison import comparison_page
from goen.report.pages.geometry import geometry_page
from goen.report.pages.main_job import main_job_page
from goen.report.pages.provenance import provenance
from goen.report.pages.robustness import robustness_page
from goen.report.pages.seeds import seeds_page
from goen.report.run_folder import RunFolder, read_run
from goen.report.table import write_tables

PAGES: dict[str, Callable[[RunFolder, Sequence[RunFolder]], Page]] = {
    "run": main_job_page,
    "bench": comparison_page,
    "ablate": comparison_page,
    "seeds": seeds_page,
    "robust": robustness_page,
    "geometry": geometry_page,
}
"""How each study is told: the run, and further runs beside it."""


def write_page(folder: Path, beside: Sequence[Path]) -> Path:
    """See ``goen.report.write_report``."""
    run = read_run(folder)
    if run.study not in PAGES:
        raise ArtifactError(
            f"{folder} holds a study called {run.study!r}, which this goen cannot report; "
            f"it knows {', '.join(PAGES)}. Was it made by a later version?"
        )
    page = PAGES[run.study](run, [read_run(other) for other in beside])
    sections = [*page.sections, provenance(run)]
    # The folder is goen's own: what an earlier report drew and this one does not is gone.
    with whole_folder(folder / "figures", replace=True) as figures:
        drawn = {
            drawing.name: _embedded(save(drawing.figure, figures, drawing.name).encode(), "svg+xml")
            for drawing in _drawings(page)
        }
    write_tables(page.tables(), folder / "tables")
    text = (
        _environment()
        .get_template("page.html")
        .render(
            title=page.title,
            study=run.study,
            summary=page.summary,
            left_out=run.left_out,
            sections=sections,
            drawn=drawn,
            photographs={path: _embedded(path.read_bytes(), "png") for path in _photographs(page)},
        )
    )
    with whole_file(folder / "report.html") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return folder / "report.html"


def _blocks(page: Page) -> list[Any]:
    return [*page.summary, *(block for section in page.sections for block in section.blocks)]


def _drawings(page: Page) -> list[Drawing]:
    return [d for block in _blocks(page) if isinstance(block, Gallery) for d in block.drawings]


def _photographs(page: Page) -> list[Path]:
    blocks = [block for block in _blocks(page) if isinstance(block, Photographs)]
    return [path for block in blocks for path, _ in block.files]


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
