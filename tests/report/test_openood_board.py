"""Near and far AUROC as the OpenOOD board counts them."""

from dataclasses import replace

import pytest

from goen.io.results import Group, Origin, Result
from goen.report.comparison import Comparison
from goen.report.openood_board import board_table
from goen.report.pages.bench import bench_tables
from goen.report.summary import Summary

SETS: dict[str, Group] = {
    "svhn": "far",
    "cifar100": "near",
    "tiny-imagenet": "near",
    "mnist": "far",
    "places": "far",
    "textures": "far",
}
AUROC = {"knn": (0.9, 0.7, 0.8, 0.6, 0.5, 0.4), "goen": (0.8, 0.6, 0.9, 0.7, 0.6, 0.9)}
CONTENT = {
    "study": "bench",
    "data": "cifar10",
    "titles": {"knn": ["KNN", "post-hoc"], "goen": ["GOEN", "goen"]},
    "uses_ood": ["goen"],
    "calibration_ood": ["svhn"],
    "missing": {},
    "config": {},
}


SUMMARY = Summary.from_json(CONTENT)  # type: ignore[arg-type]


def results(extra: dict[str, tuple[Group, float]] | None = None) -> list[Result]:
    found = []
    for method, values in AUROC.items():
        origin = Origin(method, "full", 42, "net", (), (), 1.0)
        measured = {"accuracy": 0.9, "ece": 0.1, "nll": 0.3, "brier": 0.1, "training_seconds": 60}
        found += origin.rows("test", "id", measured)
        for (name, group), value in zip(SETS.items(), values, strict=True):
            seen = method == "goen" and name == "svhn"
            found += origin.rows(name, group, {"auroc": value}, seen=seen)
        for name, (group, value) in (extra or {}).items():
            found += origin.rows(name, group, {"auroc": value})
    return found


def test_near_and_far_worked_by_hand() -> None:
    table = board_table(Comparison(results(), SUMMARY))
    assert table is not None
    rows = {row.label: row for row in table.rows if row.section == "measured here"}
    near, far = rows["KNN"].cells
    assert near.value == pytest.approx((0.7 + 0.8) / 2)
    assert far.value == pytest.approx((0.9 + 0.6 + 0.5 + 0.4) / 4)
    assert not far.seen
    # Images of SVHN calibrated the other: its far mean does not compete.
    assert [cell.seen for cell in rows["GOEN"].cells] == [False, True]
    assert [cell.mark for cell in rows["KNN"].cells] == ["tied", "best"]
    assert "fifty classes" in " ".join(table.notes)


def test_both_halves_of_cifar100_count_as_one_set() -> None:
    table = board_table(Comparison(results({"cifar100-rest": ("near", 0.9)}), SUMMARY))
    assert table is not None
    near = next(row.cells[0] for row in table.rows if row.label == "KNN")
    assert near.value == pytest.approx(((0.7 + 0.9) / 2 + 0.8) / 2)
    assert "two halves" in " ".join(table.notes)


def test_the_boards_own_figures_stand_below_and_do_not_compete() -> None:
    table = board_table(Comparison(results(), SUMMARY))
    assert table is not None
    theirs = {row.label: row for row in table.rows if row.section != "measured here"}
    best = theirs["RotPred + PixMix"]
    assert [cell.value for cell in best.cells] == pytest.approx([0.9486, 0.9818])
    assert not any(cell.mark for row in theirs.values() for cell in row.cells)
    assert "2025-07-19" in " ".join(table.notes)


def test_a_missing_set_or_other_data_has_no_such_table() -> None:
    without = [r for r in results() if r.dataset != "places"]
    assert board_table(Comparison(without, SUMMARY)) is None
    assert board_table(Comparison(results(), replace(SUMMARY, data="digits"))) is None


def test_a_method_that_lacks_a_set_has_no_mean() -> None:
    partly = [r for r in results() if (r.method, r.dataset) != ("goen", "mnist")]
    table = board_table(Comparison(partly, SUMMARY))
    assert table is not None
    goen = next(row for row in table.rows if row.label == "GOEN")
    assert [cell.missing for cell in goen.cells] == [False, True]


def test_it_is_among_the_tables_of_goen_bench() -> None:
    names = [table.name for table in bench_tables(results(), SUMMARY)]
    assert names.index("openood") == names.index("auroc") + 1
    other = [replace(r, dataset="letters") if r.dataset == "mnist" else r for r in results()]
    assert "openood" not in [table.name for table in bench_tables(other, SUMMARY)]
