"""Reports of studies: tables, figures and an HTML page, made from the files of a run alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from goen.report.summary import Study


def write_report(folder: Path, *, beside: Sequence[Path] = ()) -> Path:
    """Write the report of the run in ``folder``: ``report.html``, ``figures/`` and ``tables/``.

    Args:
        folder: of a finished run of any study.
        beside: folders of further studies (ablate, seeds, geometry), for the five-panel figure.

    Raises:
        ArtifactError: a folder does not hold a finished run.
    """
    from goen.report.page import (
        write_page,  # Matplotlib is imported when there is something to draw
    )

    return write_page(folder, beside).path


def write_paper(studies: "Sequence[Study]", folder: Path) -> Path:
    """Write the paper's Tables 1 to 3 with the numbers of these studies; the path of their page.

    Args:
        studies: of goen bench, ablate and seeds on CIFAR-10.
        folder: a new one, or one that this function wrote: ``paper.html``, and each table as
            Markdown, LaTeX and CSV.
    """
    from goen.report.page import write_paper_folder  # as above

    return write_paper_folder(studies, folder)


def write_board(studies: "Mapping[str, Study]", folder: Path) -> Path:
    """Write every method on every network of these studies side by side; the path of the page.

    Args:
        studies: of goen bench, each by a name, which is that of a network of your own.
        folder: a new one, or one that this function wrote: ``board.html``, and each table as
            Markdown, LaTeX and CSV.
    """
    from goen.report.page import write_board_folder  # as above

    return write_board_folder(studies, folder)


__all__ = ["write_board", "write_paper", "write_report"]
