"""The paper's summary figure."""

import html
from pathlib import Path

import pytest

from goen.report import write_report

from .by_hand import ablate, geometry, seeds
from .reading import page_text

pytestmark = pytest.mark.xdist_group("report")


def test_missing_panels_are_named(folder: Path) -> None:
    without_head = "calibration, " if folder.name == "no_head" else ""
    assert f"Missing here: {without_head}ablation, seeds." in page_text(folder)


def test_the_five_panels_take_what_lies_beside(
    tmp_path: Path, reports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    others = [ablate(tmp_path / "a"), seeds(tmp_path / "s"), geometry(tmp_path / "g")]
    text = html.unescape(write_report(reports["run"], beside=others).read_text())
    assert "Missing here" not in text
    assert "ablation is drawn; seeds is drawn" in text
    write_report(reports["run"])  # as the other tests expect it
