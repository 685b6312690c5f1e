"""Tables and page of ``goen robust``."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from goen.report.blocks import Page, Paragraph
from goen.report.pages.robust import robust_page, robust_tables
from goen.report.run_folder import RunFolder, read_run
from tests.report.by_hand import robust
from tests.report.reading import tables, values_by_key

pytestmark = pytest.mark.xdist_group("report")


def test_robustness_shows_means_over_corruptions(reports: dict[str, Path]) -> None:
    folder = reports["robust"]
    values = values_by_key(folder)
    by_label = {"Max softmax": "max_softmax", "KNN": "knn"}
    found = tables(folder / "report.html")
    for metric in ("accuracy", "ece", "nll", "brier", "mean_score", "flagged"):
        for (_, label, column), cell in found[metric].cells().items():
            severity = column.removeprefix("severity ")
            sets = (
                ["clean"]
                if column == "clean"
                else [f"{c}-{severity}" for c in ("fog", "gaussian_noise", "snow")]
            )
            mean = fmean(values[by_label[label], name, metric] for name in sets)
            assert cell.text == f"{mean:.4f}"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = read_run(robust(tmp_path / "r"))
    clean = [replace(r, metric="num_samples", value=2000) for r in run.results[:1]]
    bins = [replace(r, metric="num_bins", value=15) for r in clean]
    config = {**run.summary.config, "false_alarm_rate": 0.05}
    summary = replace(run.summary, config=config)
    return replace(run, results=run.results + clean + bins, summary=summary)


def one_corruption(run: RunFolder, *severities: int) -> RunFolder:
    names = ["clean", *(f"gaussian_noise-{severity}" for severity in severities)]
    return replace(run, results=[r for r in run.results if r.dataset in names])


def texts(page: Page) -> str:
    texts = [b.text if isinstance(b, Paragraph) else b for b in page.blocks()]
    return " ".join(text for text in texts if isinstance(text, str))


def test_every_table_states_what_was_measured(run: RunFolder) -> None:
    tables = {table.name: table for table in robust_tables(run.results, run.summary)}
    assert tables["accuracy"].title == (
        "Accuracy: digits, budget full, seed 42, mean over 3 corruptions"
    )
    assert tables["flagged_by_corruption"].title == (
        "Share flagged by corruption: digits, budget full, seed 42, mean over severities"
    )
    assert all("2,000 test images." in table.notes[0] for table in tables.values())
    directions = {
        "Higher is better": ("accuracy", "accuracy_by_corruption"),
        "Lower is better": ("ece", "nll", "brier"),
        "higher for more OOD": ("mean_score",),
        "neither high nor low is better": ("flagged", "flagged_by_corruption"),
    }
    for text, names in directions.items():
        assert {name for name, table in tables.items() if text in table.notes[0]} == set(names)
    assert "in bins of equal width (15)." in tables["ece"].notes[0]
    assert "for a false-alarm rate of 5 %." in tables["flagged"].notes[0]
    assert all("places" in table.notes[1] for table in tables.values())


def test_what_was_not_recorded_is_not_in_the_notes(tmp_path: Path) -> None:
    run = read_run(robust(tmp_path / "old"))
    tables = {table.name: table for table in robust_tables(run.results, run.summary)}
    assert "in bins of equal width. Lower" in tables["ece"].notes[0]
    assert "set on clean held-out images. A" in tables["flagged"].notes[0]
    assert not any("test images" in note for table in tables.values() for note in table.notes)


def test_one_corruption_at_one_severity_is_named(run: RunFolder) -> None:
    run = one_corruption(run, 5)
    titles = [table.title for table in robust_tables(run.results, run.summary)]
    assert titles[0] == "Accuracy: digits, budget full, seed 42, gaussian noise"
    assert titles[-1].endswith("by corruption: digits, budget full, seed 42, severity 5")
    text = texts(robust_page(run, []))
    assert "under 1 corruption at severity 5. " in text
    assert "The one corruption is gaussian noise." in text
    assert "Boxes" not in text


def test_the_lowest_accuracy_may_be_that_of_clean_images(run: RunFolder) -> None:
    text = texts(robust_page(run, []))
    assert "<b>39.3%</b> for Max softmax (snow, severity 5)" in text
    assert "under 3 corruptions at severities 1, 2, 3, 4, 5. " in text
    harmless = [replace(r, value=1.0) if r.metric == "accuracy" else r for r in run.results]
    text = texts(robust_page(replace(run, results=harmless), []))
    assert "<b>100.0%</b> for Max softmax (clean images: no corruption lowered it)" in text
    assert "severity 0" not in text


def test_methods_with_equal_values_are_joined_by_what_no_title_has(run: RunFolder) -> None:
    titles = {"max_softmax": ("GOEN, distance only", "goen"), "knn": ("GOEN", "goen")}
    run = replace(run, summary=replace(run.summary, titles=titles))
    alts = {drawing.name: drawing.alt for drawing in robust_page(run, []).drawings()}
    assert "severity. GOEN, distance only; GOEN: 0.95 at 0" in alts["severity-accuracy"]
