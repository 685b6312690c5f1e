"""The paper's summary figure."""

import html
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from goen.io.results import read_results, write_results
from goen.report import write_report
from goen.report.five_panels import Panel, five_panel_section, five_panels
from goen.report.run_folder import read_run
from tests.report.by_hand import ablate, bench, geometry, seeds, write_head
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
    # The mean over all three sets: noise, of a kind that calibrates, is among them.
    drawing = (reports["run"] / "figures" / "five-panels.svg").read_text()
    first = (0.9371 + 0.9371 - 0.0113 + 0.9371 - 0.0226) / 3
    assert f">{first:.3f} <" in drawing
    assert "near-set, far-set, noise" in drawing
    # These seeds have no epochs: their finished gates are drawn.
    assert "AUROC by epoch was not recorded by goen seeds" in text
    assert "not recorded by the goen that made this run" not in text
    assert f">{0.93 - 0.0031:.3f} <" in drawing
    write_report(reports["run"])  # as the other tests expect it


def shown(run: Path, *beside: Path) -> tuple[str, dict[str, Axes]]:
    """The text of the section, and its panels by title."""
    (section,) = five_panel_section(read_run(run, beside))
    text, (drawing,) = section.blocks
    panels = [ax for ax in drawing.figure.axes if ax.axison]
    return str(text), {ax.get_title(loc="left"): ax for ax in panels}


def lines(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """Epochs and values of each line by its label; rings have none."""
    named = [line for line in ax.lines if not str(line.get_label()).startswith("_child")]
    return {str(x.get_label()): (list(x.get_xdata()), list(x.get_ydata())) for x in named}


def rings(ax: Axes) -> list[tuple[float, float]]:
    marked = [line for line in ax.lines if line.get_markerfacecolor() == "none"]
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in marked]


SCORES = [
    {"id_score": 0.5, "ood_score": 0.6, "gap": 0.1},
    {"id_score": 0.2, "ood_score": 0.9, "gap": 0.7},
    {"id_score": 0.1, "ood_score": 0.7, "gap": 0.6},
]


def test_the_calibration_panel_has_the_scores_of_both_kinds_of_images(tmp_path: Path) -> None:
    folder = seeds(tmp_path / "s")
    write_head(folder, SCORES)
    text, panels = shown(folder)
    panel = panels["b  Calibration"]
    assert lines(panel) == {
        "ID images": ([1, 2, 3], [0.5, 0.2, 0.1]),
        "OOD images": ([1, 2, 3], [0.6, 0.9, 0.7]),
    }
    assert rings(panel) == [(2, 0.2), (2, 0.9)]
    assert "A ring marks the epoch" in text


def test_a_record_of_the_gap_alone_is_drawn_with_a_sentence(tmp_path: Path) -> None:
    folder = seeds(tmp_path / "s")
    write_head(folder, [{"gap": row["gap"]} for row in SCORES])
    text, panels = shown(folder)
    panel = panels["b  Calibration"]
    (line,) = panel.lines
    assert list(line.get_ydata()) == [0.1, 0.7, 0.6]
    assert panel.get_ylabel() == "mean u(OOD) − mean u(ID)"
    assert "not recorded by the goen that made this run: the calibration panel shows" in text
    assert "The same command again" in text
    assert "A ring" not in text


def test_the_panel_of_seeds_is_auroc_by_epoch(tmp_path: Path) -> None:
    folder = seeds(tmp_path / "s")
    areas = {"auroc/near-set": 0.6, "auroc/far-set": 0.9, "auroc/noise": 0.9, "auroc/other": 0.0}
    better = {**areas, "auroc/near-set": 0.9}
    first = [{**SCORES[0], **areas, "variant": "42"}, {**SCORES[1], **better, "variant": "42"}]
    write_head(folder, [*first, {**SCORES[2], **areas, "variant": "7"}])
    text, panels = shown(folder)
    panel = panels["e  Seeds"]
    found = lines(panel)
    assert found["seed 42"] == ([1, 2], pytest.approx([0.8, 0.9]))
    assert found["seed 7"] == ([3], pytest.approx([0.8]))
    assert rings(panel) == [(2, pytest.approx(0.9)), (3, pytest.approx(0.8))]
    assert "AUROC by epoch was not recorded" not in text


def on_papers_sets(folder: Path) -> Path:
    """The ablation with the paper's three sets in place of ours, and a fourth."""
    names = {"near-set": "cifar100", "far-set": "svhn", "noise": "noise"}
    found = read_results(folder / "results.jsonl")
    renamed = [replace(r, dataset=names.get(r.dataset, r.dataset)) for r in found]
    extra = [replace(r, dataset="mnist", value=0.1) for r in renamed if r.dataset == "svhn"]
    write_results(folder / "results.jsonl", renamed + extra, overwrite=True)
    return folder


def test_the_ablation_is_averaged_over_the_papers_three_sets(tmp_path: Path) -> None:
    text, panels = shown(on_papers_sets(ablate(tmp_path / "a")))
    (panel,) = panels.values()
    assert panel.get_xlabel() == "mean AUROC of\nsvhn, cifar100, noise"
    widths = [bar.get_width() for bar in panel.patches]
    assert widths == pytest.approx([0.9371 - 0.0113 - 0.0417 * number for number in range(3)])
    assert "Not drawn, for want of further studies: training" in text


LINE = [(1, 0.5), (2, 0.6)]
EMPTY = [Panel(name) for name in ("training", "calibration", "compactness", "ablation", "seeds")]


def test_panels_without_data_are_hidden() -> None:
    training, seeds = Panel("training", lines={"": LINE}), Panel("seeds", bars={"42": 0.9})
    figure = five_panels([training, *EMPTY[1:4], seeds])
    drawn = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title(loc="left") for ax in drawn] == ["a  Training", "e  Seeds"]
    assert all(ax.has_data() for ax in drawn)
    others = [Panel(panel.name, lines={"": LINE}) for panel in EMPTY[1:3]]
    four = five_panels([training, *others, EMPTY[3], seeds])
    assert len([ax for ax in four.axes if ax.axison]) == 4


def test_one_panel_is_drawn_alone() -> None:
    figure = five_panels([*EMPTY[:4], Panel("seeds", bars={"42": 0.9, "7": 0.8})])
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["e  Seeds"]


def test_without_a_panel_there_is_no_section(tmp_path: Path) -> None:
    assert five_panel_section(read_run(bench(tmp_path / "b"))) == []
