"""Reports of studies: tables, figures and an HTML page, made from the files of a run alone."""

from collections.abc import Sequence
from pathlib import Path


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


__all__ = ["write_report"]
