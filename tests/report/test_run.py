"""Tables and page of ``goen run``: the numbers of the results."""

import re
from pathlib import Path

import pytest

from goen.runs.results import read_results
from goen.studies import METHODS

from .reading import page_text, plain, results_by_key, tables

pytestmark = pytest.mark.xdist_group("report")
BY_SET = ("auroc", "fpr95_ood_positive", "fpr95_id_positive", "aupr_out")


def test_every_number_of_every_table_is_that_of_the_results(folder: Path) -> None:
    found = tables(folder / "report.html")
    results = results_by_key(folder)
    methods = {method.title: key for key, method in METHODS.items()}
    compared = 0
    for metric in BY_SET:
        for (_, label, column), cell in found[metric].cells().items():
            dataset, bracket, _ = column.partition(" (")
            if not bracket:
                continue
            r = results[methods[label], dataset, metric]
            assert plain(cell.text) == f"{r.value:.4f}"
            if r.low is not None:
                assert cell.interval == f"{r.low:.4f}–{r.high:.4f}"
            assert cell.text.endswith("†") == r.seen_in_calibration
            compared += 1
    assert compared == len([r for r in results.values() if r.metric in BY_SET])
    for (_, _, column), cell in found["flagged"].cells().items():
        name = column.removesuffix(" (ID)")
        metric = "false_alarm_rate" if name == "test" else "flagged"
        assert cell.text == f"{results['gate', name, metric].value:.1%}"
    names = {"accuracy": "accuracy", "ECE (15 bins)": "ece", "NLL": "nll", "Brier": "brier"}
    for (_, label, column), cell in found["classifier"].cells().items():
        assert cell.text == f"{results['classifier', label, names[column]].value:.4f}"
    has_head = any(r.method == "goen" for r in results.values())
    assert ("ood_probability" in found) == has_head
    if has_head:
        for (_, label, column), cell in found["ood_probability"].cells().items():
            r = results["goen", label.partition(" (")[0], f"ood_{column}"]
            assert plain(cell.text) == f"{r.value:.4f}"
    known = {*BY_SET, "flagged", "classifier", "ood_probability"}
    assert set(found) <= known, "a table that this test does not compare"


def test_the_averages_are_means_of_results(folder: Path) -> None:
    results = results_by_key(folder)
    groups = {r.dataset: r.group for r in results.values() if r.group != "id"}
    seen = {r.dataset for r in results.values() if r.seen_in_calibration}
    methods = {method.title: key for key, method in METHODS.items()}
    for metric in ("auroc", "fpr95_ood_positive"):
        for (_, label, column), cell in tables(folder / "report.html")[metric].cells().items():
            if not column.startswith("mean"):
                continue
            kind = column.removeprefix("mean ")
            sets = {
                "unseen": [n for n in groups if n not in seen],
                "seen": [n for n in groups if n in seen],
                "near": [n for n, g in groups.items() if g == "near" and n not in seen],
                "far": [n for n, g in groups.items() if g == "far" and n not in seen],
            }[kind]
            values = [results[methods[label], name, metric].value for name in sets]
            assert plain(cell.text) == f"{sum(values) / len(values):.4f}"


def test_the_text_has_the_numbers_of_the_results(folder: Path) -> None:
    text = page_text(folder)
    for r in read_results(folder / "results.jsonl"):
        if r.metric in ("false_alarm_rate", "flagged"):
            assert f"<b>{r.value:.1%}</b>" in text
    accuracy = results_by_key(folder)["classifier", "test", "accuracy"].value
    assert f"accuracy on the test images is <b>{accuracy:.1%}</b>" in text


def test_the_best_of_each_set_is_bold(folder: Path) -> None:
    results = [r for r in read_results(folder / "results.jsonl") if r.metric == "auroc"]
    for (_, _, column), cell in tables(folder / "report.html")["auroc"].cells().items():
        here = [r.value for r in results if column.startswith(f"{r.dataset} (")]
        if here:
            assert cell.bold == (plain(cell.text) == f"{max(here):.4f}")


def test_the_prevalence_stands_beside_precision(folder: Path) -> None:
    assert re.search(
        r"Precision-recall curves on noise, of which 38\.5% are OOD", page_text(folder)
    )
