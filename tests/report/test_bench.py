"""Tables and page of ``goen bench``."""

from pathlib import Path

import pytest

from goen.report.bench import bench_tables
from goen.report.summary import Summary
from goen.runs.results import Origin, Result

from .reading import methods_by_title, tables, values_by_key

pytestmark = pytest.mark.xdist_group("report")


SETS = {"svhn": ("far", True), "cifar100": ("near", False), "noise": ("noise", True)}
AUROC = {"max_softmax": (0.8, 0.7, 0.9), "goen": (0.9, 0.6, 1.0), "knn": (0.85, 0.75, 0.95)}


def results() -> list[Result]:
    found = []
    for method, values in AUROC.items():
        origin = Origin(method, "full", 42, "net", ("train:1",), (), 1.25)
        numbers = {"accuracy": 0.9, "ece": 0.02, "nll": 0.3, "brier": 0.1, "training_seconds": 60}
        found += origin.rows("test", "id", numbers)
        for (name, (group, seen)), value in zip(SETS.items(), values, strict=True):
            measured = {
                "auroc": value,
                "auroc_low": value - 0.01,
                "auroc_high": value + 0.01,
                "fpr95_ood_positive": 1 - value,
                "fpr95_id_positive": 1 - value / 2,
            }
            seen_here = seen and method == "goen"
            found += origin.rows(name, group, measured, seen=seen_here)  # type: ignore[arg-type]
            if method == "knn" and name == "svhn":
                found += origin.rows(name, "far", {"p_against_best": 0.2})
            if method == "max_softmax" and name == "svhn":
                found += origin.rows(name, "far", {"p_against_best": 0.01})
    return found


CONTENT = {
    "study": "bench",
    "data": "cifar10",
    "config": {},
    "titles": {
        "max_softmax": ["Max softmax", "predictive"],
        "knn": ["KNN", "post-hoc"],
        "goen": ["GOEN", "goen"],
    },
    "uses_ood": ["goen"],
    "missing": {"places": "places is not here."},
    "skipped": {"pytorch_ood.KNN": "pytorch-ood cannot be imported."},
}
SUMMARY = Summary.from_json(CONTENT)


def test_the_auroc_table_holds_every_number_its_mark_and_its_averages() -> None:
    table = bench_tables(results(), SUMMARY)[0]
    assert table.title == "AUROC: cifar10, budget full, seed 42"
    assert table.columns == (
        "svhn (far)",
        "cifar100 (near)",
        "noise (noise)",
        "mean seen",
        "mean paper's three",
        "OOD data",
    )
    by_label = {row.label: row.cells for row in table.rows}
    assert [row.label for row in table.rows] == ["Max softmax", "KNN", "GOEN"]
    svhn = {label: cells[0] for label, cells in by_label.items()}
    assert {k: c.value for k, c in svhn.items()} == {"Max softmax": 0.8, "KNN": 0.85, "GOEN": 0.9}
    assert {k: c.mark for k, c in svhn.items()} == {
        "Max softmax": "",
        "KNN": "tied",
        "GOEN": "best",
    }
    assert (svhn["GOEN"].low, svhn["GOEN"].high) == (0.9 - 0.01, 0.9 + 0.01)
    assert [c.seen for c in by_label["GOEN"][:3]] == [True, False, True]
    assert not any(c.seen for c in by_label["KNN"])
    # seen: SVHN and noise, for every method; unseen: CIFAR-100
    assert [c.value for c in by_label["KNN"][3:5]] == pytest.approx([0.9, 0.85])
    assert [c[-1].text for c in by_label.values()] == ["no", "no", "yes"]
    assert any("places is not here" in note for note in table.notes)
    assert any("pytorch-ood cannot be imported" in note for note in table.notes)


def test_lower_is_better_where_it_is() -> None:
    tables = {table.name: table for table in bench_tables(results(), SUMMARY)}
    assert list(tables) == ["auroc", "fpr95_ood_positive", "fpr95_id_positive", "classifier"]
    fpr = {row.label: row.cells[0] for row in tables["fpr95_ood_positive"].rows}
    assert {k: c.mark for k, c in fpr.items()} == {"Max softmax": "", "KNN": "", "GOEN": "best"}
    cost = tables["classifier"].rows[0].cells
    assert [c.formatted for c in cost] == ["0.9000", "0.0200", "0.3000", "0.1000", "60", "1.25"]


def test_the_cost_is_that_of_the_results(reports: dict[str, Path]) -> None:
    folder = reports["bench"]
    values, by_title = values_by_key(folder), methods_by_title(folder)
    for (section, label, column), cell in (
        tables(folder / "report.html")["classifier"].cells().items()
    ):
        method = by_title[section, label]
        if column == "training s":
            assert cell.text == f"{values[method, 'test', 'training_seconds']:.0f}"
        if column == "accuracy":
            assert cell.text == f"{values[method, 'test', 'accuracy']:.4f}"
    assert (
        "Max softmax 60.5 s, 0.9315" in (folder / "report.html").read_text()
    )  # (.9371 + .9258) / 2


def test_a_skipped_method_is_named(reports: dict[str, Path]) -> None:
    text = (reports["bench"] / "report.html").read_text()
    assert "<b>pytorch_ood.KNN is missing.</b> pytorch-ood cannot be imported." in text
