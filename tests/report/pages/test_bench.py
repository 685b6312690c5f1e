"""Tables and page of ``goen bench``."""

from dataclasses import replace
from pathlib import Path

import pytest

from goen.metrics import group_averages
from goen.report.bench import bench_tables
from goen.report.summary import Summary
from goen.report.table import Cell, Table
from goen.runs.results import Group, Origin, Result

from .reading import methods_by_title, tables, values_by_key

pytestmark = pytest.mark.xdist_group("report")

SETS: dict[str, Group] = {
    "svhn": "far",
    "cifar100": "near",
    "noise": "noise",
    "tiny-imagenet": "near",
    "mnist": "far",
    "places": "far",
}
SEEN = ("svhn", "noise")
AUROC = {
    "max_softmax": (0.80, 0.70, 0.90, 0.61, 0.71, 0.81),
    "goen": (0.90, 0.60, 1.00, 0.62, 0.72, 0.82),
    "knn": (0.85, 0.75, 0.95, 0.63, 0.73, 0.80),
}
P_VALUES = {("max_softmax", "svhn"): 0.01, ("max_softmax", "places"): 0.2, ("knn", "places"): 0.01}


def results(*, seen: bool = True) -> list[Result]:
    found = []
    for method, values in AUROC.items():
        network = "other" if method == "goen" else "net"
        origin = Origin(method, "full", 42, network, ("train:1",), (), 1.25)
        accuracy = 0.8 if method == "goen" else 0.9
        numbers = {"accuracy": accuracy, "ece": 0.02, "nll": 0.3, "brier": 0.1}
        found += origin.rows("test", "id", {**numbers, "training_seconds": 60})
        for (name, group), value in zip(SETS.items(), values, strict=True):
            measured = {
                "auroc": value,
                "auroc_low": value - 0.01,
                "auroc_high": value + 0.01,
                "aupr_out": value / 2,
                "fpr95_ood_positive": 1 - value,
                "fpr95_id_positive": 1 - value / 2,
            }
            calibrated = seen and name in SEEN and method == "goen"
            found += origin.rows(name, group, measured, seen=calibrated)
            if (method, name) in P_VALUES:
                p = {"p_against_best": P_VALUES[method, name]}
                found += origin.rows(name, group, p, seen=calibrated)
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
    "calibration_ood": ["svhn", "noise"],
    "missing": {"places": "places is not here."},
    "skipped": {"pytorch_ood.KNN": "pytorch-ood cannot be imported."},
}
SUMMARY = Summary.from_json(CONTENT)  # type: ignore[arg-type]
COLUMNS = (
    "mean unseen",
    "cifar100 (near)",
    "tiny-imagenet (near)",
    "mnist (far)",
    "places (far)",
    "mean near",
    "mean far",
    "svhn (far)",
    "noise",
    "mean calibration kinds",
    "mean paper's three",
)


def column(table: Table, name: str) -> dict[str, Cell]:
    place = table.columns.index(name)
    return {row.label: row.cells[place] for row in table.rows}


def test_unseen_sets_lead_and_calibration_kinds_are_set_apart() -> None:
    table = bench_tables(results(), SUMMARY)[0]
    assert table.title == "AUROC: cifar10, budget full, seed 42"
    assert table.columns == (*COLUMNS, "OOD data")
    assert table.apart == COLUMNS.index("svhn (far)")
    assert [row.label for row in table.rows] == ["Max softmax", "KNN", "GOEN"]
    svhn = column(table, "svhn (far)")
    assert {k: c.value for k, c in svhn.items()} == {"Max softmax": 0.8, "KNN": 0.85, "GOEN": 0.9}
    assert (svhn["GOEN"].low, svhn["GOEN"].high) == (0.9 - 0.01, 0.9 + 0.01)
    assert [c.text for c in column(table, "OOD data").values()] == ["no", "no", "yes"]
    text = " ".join(table.notes)
    assert "Mean unseen: over cifar100, tiny-imagenet, mnist, places, for every row" in text
    assert "the calibration kinds: svhn, noise, of which" in text
    assert "places is not here" in text
    assert "pytorch-ood cannot be imported" in text


def test_the_averages_are_those_of_the_metrics() -> None:
    for table in bench_tables(results(), SUMMARY)[:3]:
        for label, method in (("Max softmax", "max_softmax"), ("KNN", "knn"), ("GOEN", "goen")):
            values = {r.dataset: r.value for r in results() if key(r) == (method, table.name)}
            means = group_averages(
                values, groups=SETS, seen=SEEN, paper_sets=("svhn", "cifar100", "noise")
            )
            shown = {name: column(table, name)[label].value for name in COLUMNS if "mean" in name}
            assert shown == pytest.approx(
                {
                    "mean unseen": means.unseen,
                    "mean near": means.near.unseen,
                    "mean far": means.far.unseen,
                    "mean calibration kinds": means.seen,
                    "mean paper's three": means.paper_average,
                }
            )


def key(result: Result) -> tuple[str, str]:
    return result.method, result.metric


@pytest.mark.parametrize("recorded", [True, False])
def test_the_means_are_over_the_same_sets_whatever_methods_are_compared(recorded: bool) -> None:
    content = {**CONTENT, "titles": {"knn": ["KNN", "post-hoc"]}, "uses_ood": []}
    if not recorded:  # as in the folders of earlier versions
        del content["calibration_ood"]
    alone = [r for r in results() if r.method == "knn"]
    summary = Summary.from_json(content)  # type: ignore[arg-type]
    for lonely, table in zip(
        bench_tables(alone, summary)[:4], bench_tables(results(), SUMMARY)[:4], strict=True
    ):
        assert (lonely.columns, lonely.apart) == (table.columns, table.apart)
        knn = next(row for row in table.rows if row.label == "KNN")
        assert [c.value for c in lonely.rows[0].cells] == [c.value for c in knn.cells]


def test_a_row_that_has_seen_a_kind_is_marked_and_never_bold_there() -> None:
    for table in bench_tables(results(), SUMMARY)[:4]:
        goen = next(row for row in table.rows if row.label == "GOEN").cells
        apart = goen[table.apart : len(COLUMNS)]
        assert apart
        assert all(cell.seen and not cell.mark for cell in apart)
        assert not any(cell.seen for cell in goen[: table.apart])
        assert not any(cell.seen for row in table.rows[:2] for cell in row.cells)
    auroc = bench_tables(results(), SUMMARY)[0]
    for name in ("svhn (far)", "noise", "mean calibration kinds", "mean paper's three"):
        # GOEN is the highest of each but the last.
        assert {k: c.mark for k, c in column(auroc, name).items()} == {
            "Max softmax": "",
            "KNN": "best",
            "GOEN": "",
        }
    far = {k: c.mark for k, c in column(auroc, "mean far").items()}
    assert far == {"Max softmax": "", "KNN": "", "GOEN": "best"}


def test_the_same_row_is_bold_where_nothing_calibrated_it() -> None:
    table = bench_tables(results(seen=False), SUMMARY)[0]
    assert column(table, "mean calibration kinds")["GOEN"].mark == "best"


def test_what_is_not_significantly_worse_than_the_best_is_tied() -> None:
    places = column(bench_tables(results(), SUMMARY)[0], "places (far)")
    assert {k: c.mark for k, c in places.items()} == {
        "Max softmax": "tied",
        "KNN": "",
        "GOEN": "best",
    }


def test_a_test_against_another_row_than_the_bold_one_is_not_shown() -> None:
    # An earlier version compared svhn's rows with GOEN, which other images of SVHN calibrated.
    old = [replace(r, metric="p_against_best", value=0.9) for r in results() if is_svhn_knn(r)]
    table = bench_tables([*results(), *old], SUMMARY)[0]
    assert column(table, "svhn (far)")["KNN"].mark == "best"
    assert column(table, "svhn (far)")["Max softmax"].mark == ""
    higher = [replace(r, value=0.3) if r.metric == "p_against_best" else r for r in results()]
    table = bench_tables([*higher, *old], SUMMARY)[0]
    assert column(table, "svhn (far)")["Max softmax"].mark == ""


def test_a_row_that_has_seen_a_kind_is_not_tied_there_either() -> None:
    # An earlier version tested it too: against KNN, which is the best on SVHN without it.
    old = [
        replace(r, metric="p_against_best", value=0.9)
        for r in results()
        if (r.method, r.dataset, r.metric) == ("goen", "svhn", "auroc")
    ]
    lower = [replace(r, value=0.3) if r.metric == "p_against_best" else r for r in results()]
    svhn = column(bench_tables([*lower, *old], SUMMARY)[0], "svhn (far)")
    assert {k: c.mark for k, c in svhn.items()} == {
        "Max softmax": "tied",
        "KNN": "best",
        "GOEN": "",
    }


def is_svhn_knn(result: Result) -> bool:
    return (result.method, result.dataset, result.metric) == ("knn", "svhn", "auroc")


def test_one_unseen_set_leads_and_no_mean_is_over_calibration_kinds_alone() -> None:
    few = [r for r in results() if r.dataset in ("test", "cifar100", "svhn", "noise")]
    table = bench_tables(few, SUMMARY)[0]
    assert table.columns == (
        "cifar100 (near)",
        "svhn (far)",
        "noise",
        "mean paper's three",
        "OOD data",
    )
    assert table.apart == 1
    far = [r for r in results() if r.dataset in ("test", "mnist", "places")]
    assert bench_tables(far, SUMMARY)[0].columns[:-1] == (
        "mean unseen",  # which is that of the far sets
        "mnist (far)",
        "places (far)",
    )
    seen = [r for r in results() if r.dataset in ("test", "svhn", "noise")]
    table = bench_tables(seen, SUMMARY)[0]
    assert table.columns == ("svhn (far)", "noise", "OOD data")
    assert table.apart is None


def test_every_metric_has_a_name_its_convention_and_its_direction() -> None:
    found = {table.name: table for table in bench_tables(results(), SUMMARY)}
    assert list(found) == [
        "auroc",
        "fpr95_ood_positive",
        "fpr95_id_positive",
        "aupr_out",
        "classifiers",
        "cost",
    ]
    assert not any("_" in table.title for table in found.values())
    aupr = found["aupr_out"]
    assert aupr.title.startswith("AUPR, OOD positive: cifar10")
    assert "OOD images as the positive class" in aupr.notes[0]
    assert not any(name.startswith("mean") for name in aupr.columns)
    lower = column(found["fpr95_ood_positive"], "mnist (far)")
    assert "Lower is better" in found["fpr95_ood_positive"].notes[0]
    assert {k: c.mark for k, c in lower.items()} == {"Max softmax": "", "KNN": "best", "GOEN": ""}


def test_methods_that_share_a_network_share_a_row_of_the_classifiers() -> None:
    table = next(t for t in bench_tables(results(), SUMMARY) if t.name == "classifiers")
    assert [row.label for row in table.rows] == ["Max softmax and 1 other", "GOEN"]
    assert [cell.mark for cell in column(table, "accuracy").values()] == ["best", ""]
    # Equal numbers of different networks are no best either.
    assert [cell.mark for cell in column(table, "ECE").values()] == ["tied", "tied"]
    assert "Max softmax and 1 other: KNN." in table.notes


def test_a_metric_of_no_result_has_no_table() -> None:
    old = [r for r in results() if r.metric != "aupr_out"]
    assert "aupr_out" not in {table.name for table in bench_tables(old, SUMMARY)}


def test_the_cost_is_that_of_the_results(reports: dict[str, Path]) -> None:
    folder = reports["bench"]
    values, by_title = values_by_key(folder), methods_by_title(folder)
    shown = tables(folder / "report.html")["cost"].cells()
    assert shown
    for (section, label, name), cell in shown.items():
        method = by_title[section, label]
        if name == "training s":
            assert cell.text == f"{values[method, 'test', 'training_seconds']:.0f}"
    assert shown["post-hoc", "KNN", "fit and score s"].text == "1.50"


def test_the_cost_names_the_machine_in_every_file() -> None:
    hardware = {"processor": "A 1000", "threads": 2}
    for recorded, text in ((hardware, "processor A 1000, threads 2"), ({}, "not recorded")):
        cost = bench_tables(results(), replace(SUMMARY, hardware=recorded))[-1]
        assert cost.notes[0].endswith(f"The machine: {text}.")


def test_a_skipped_method_is_named(reports: dict[str, Path]) -> None:
    text = (reports["bench"] / "report.html").read_text()
    assert "<b>pytorch_ood.KNN is missing.</b> pytorch-ood cannot be imported." in text
