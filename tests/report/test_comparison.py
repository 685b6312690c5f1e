"""What bench and ablate share: the numbers of the results, in tables."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from goen.report.comparison import Comparison
from goen.report.run_folder import read_run
from goen.report.table import markdown
from tests.report.by_hand import SETS, ablate, bench
from tests.report.reading import methods_by_title, plain, tables, values_by_key

pytestmark = pytest.mark.xdist_group("report")


@pytest.mark.parametrize("study", ["bench", "ablate"])
def test_a_comparison_shows_the_results(study: str, reports: dict[str, Path]) -> None:
    folder = reports[study]
    values, by_title = values_by_key(folder), methods_by_title(folder)
    found = tables(folder / "report.html")
    for metric in ("auroc", "fpr95_ood_positive", "fpr95_id_positive", "aupr_out"):
        checked = 0
        for (section, label, column), cell in found[metric].cells().items():
            method = by_title[section, label]
            dataset = column.partition(" (")[0]
            if dataset in SETS:
                assert plain(cell.text) == f"{values[method, dataset, metric]:.4f}"
                checked += 1
            elif column == "mean unseen":
                mean = fmean(values[method, name, metric] for name in ("near-set", "far-set"))
                assert plain(cell.text) == f"{mean:.4f}"
        assert checked == 3 * len(by_title)


def test_a_method_that_lacks_a_set_has_no_mean_over_it(tmp_path: Path) -> None:
    run = read_run(ablate(tmp_path / "a"))
    kept = [r for r in run.results if (r.method, r.dataset) != ("concat", "far-set")]
    table = Comparison(kept, run.summary).auroc()
    means = {
        run.titles[m]: row.cells[0].value for m, row in zip(run.titles, table.rows, strict=True)
    }
    assert table.columns[0] == "mean unseen"
    assert means.pop(run.titles["concat"]) is None
    assert None not in means.values()


def test_an_auroc_below_one_half_is_marked_and_explained(tmp_path: Path) -> None:
    run = read_run(bench(tmp_path / "b"))
    assert not any("‡" in note for note in Comparison(run.results, run.summary).auroc().notes)

    def inverted(below: float) -> tuple[list[bool], bool, str]:
        worse = [
            replace(r, value=below) if (r.method, r.metric) == ("knn", "auroc") else r
            for r in run.results
        ]
        table = Comparison(worse, run.summary).auroc()
        [row] = [row for row in table.rows if row.label == run.titles["knn"][0]]
        cells = [cell.inverted for cell in row.cells if cell.value is not None]
        return cells, any(note.startswith("‡: below 0.5") for note in table.notes), markdown(table)

    cells, explained, text = inverted(0.4999)
    assert all(cells)
    assert explained
    assert "0.4999‡" in text
    cells, explained, text = inverted(0.5)
    assert not any(cells)
    assert not explained


def test_methods_far_below_max_softmax_are_named(tmp_path: Path) -> None:
    run = read_run(bench(tmp_path / "b"))
    [baseline] = [
        row.cells[0].value
        for row in Comparison(run.results, run.summary).auroc().rows
        if row.label == "Max softmax"
    ]
    assert baseline is not None

    def notes(below: float) -> list[str]:
        worse = [
            replace(r, value=baseline - below) if (r.method, r.metric) == ("knn", "auroc") else r
            for r in run.results
        ]
        return [n for n in Comparison(worse, run.summary).auroc().notes if "below max" in n]

    [note] = notes(0.051)
    assert note.startswith("More than 0.05 below max softmax on average over near-set, far-set: ")
    assert "KNN" in note.partition(". docs")[0]
    assert "Max softmax" not in note
    assert not any("KNN" in note for note in notes(0.049))


def test_methods_that_share_a_classifier_share_a_row_and_are_named_below(tmp_path: Path) -> None:
    run = read_run(ablate(tmp_path / "a"))
    twins = [replace(r, method="concat_distance") for r in run.results if r.method == "concat"]
    table = Comparison([*run.results, *twins], run.summary).classifiers()
    of_two = "concatenation as in the figure, with CenterLoss"
    assert f"{of_two} and 1 other" in [row.label for row in table.rows]
    assert f"{of_two} and 1 other: {of_two}." in table.notes


def test_a_high_accuracy_is_best_and_of_errors_the_low_ones(tmp_path: Path) -> None:
    run = read_run(bench(tmp_path / "b"))
    errors = ("ece", "nll", "brier")
    worse = [
        replace(r, value=2 * r.value) if r.method == "max_softmax" and r.metric in errors else r
        for r in run.results
        if (r.method, r.dataset) != ("goen", "test")
    ]
    table = Comparison(worse, run.summary).classifiers()
    marks = {row.label: [cell.mark for cell in row.cells] for row in table.rows}
    assert marks["Max softmax"] == ["best", "", "", ""]
    assert marks["KNN"] == ["", "best", "best", "best"]
