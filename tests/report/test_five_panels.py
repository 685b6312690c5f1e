"""The paper's summary figure."""

import html
from pathlib import Path

import pytest

from goen.report import write_report
from goen.report.five_panels import five_panel_section, five_panels
from goen.report.run_folder import read_run
from tests.report.by_hand import ablate, bench, geometry, seeds
from tests.report.reading import page_text

pytestmark = pytest.mark.xdist_group("report")


def test_missing_panels_are_named(folder: Path) -> None:
    without_head = "calibration, " if folder.name == "no_head" else ""
    assert f"Not drawn, for want of further studies: {without_head}ablation, seeds." in page_text(
        folder
    )


def test_the_five_panels_take_what_lies_beside(
    tmp_path: Path, reports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    others = [ablate(tmp_path / "a"), seeds(tmp_path / "s"), geometry(tmp_path / "g")]
    text = html.unescape(write_report(reports["run"], beside=others).read_text())
    assert "Not drawn" not in text
    assert "training, calibration, compactness, ablation, seeds." in text
    # Means over the unseen sets alone: noise, of a kind that calibrates, is not among them.
    drawing = (reports["run"] / "figures" / "five-panels.svg").read_text()
    first = (0.9371 + 0.9371 - 0.0113) / 2
    assert f">{first:.3f} <" in drawing
    assert "mean AUROC, unseen OOD sets" in drawing
    write_report(reports["run"])  # as the other tests expect it


def test_panels_without_data_are_hidden() -> None:
    line = [(1, 0.5), (2, 0.6)]
    none: dict[str, float] = {}
    lines = {"training": {"": line}, "calibration": {}, "compactness": {}}
    figure = five_panels(lines, {"ablation": none, "seeds": {"42": 0.9, "7": 0.8}})
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in shown] == ["a  Training", "e  Seeds"]
    assert all(ax.has_data() for ax in shown)
    lines = {"training": {"": line}, "calibration": {"": line}, "compactness": {"one": line}}
    four = five_panels(lines, {"ablation": none, "seeds": {"42": 0.9}})
    assert len([ax for ax in four.axes if ax.get_visible()]) == 4


def test_one_panel_is_drawn_alone() -> None:
    lines: dict[str, dict[str, list[tuple[int, float]]]] = {
        name: {} for name in ("training", "calibration", "compactness")
    }
    figure = five_panels(lines, {"ablation": {}, "seeds": {"42": 0.9, "7": 0.8}})
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["e  Seeds"]


def test_without_a_panel_there_is_no_section(tmp_path: Path) -> None:
    assert five_panel_section(read_run(bench(tmp_path / "b"))) == []
