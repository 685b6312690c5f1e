"""Near and far AUROC as the OpenOOD board counts them."""

from dataclasses import replace

import pytest

from goen.detectors import DETECTORS
from goen.io.results import Group, Origin, Result
from goen.report.comparison import Comparison
from goen.report.openood_board import _BOARD, board_table, openood_table
from goen.report.openood_csv import OpenOodRows
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


def test_the_published_rows_are_those_of_the_board() -> None:
    # Typed from the board's files a second time: near and far AUROC in per cent.
    published = """
        RotPred + PixMix 94.86 98.18, LogitNorm + PixMix 94.25 97.90, PixMix, KNN 93.10 95.94,
        T2FNorm 92.79 96.98, CombOOD 91.13 94.65, NAC-UE 90.93 94.60 74.43 95.29,
        KNN 90.64 92.96 71.10 90.18, fDBD 90.42 93.16 76.63 92.77,
        RMDS (relative Mahalanobis) 89.80 92.20 76.99 86.38, Relation 89.77 92.21,
        NCI 88.86 91.27 78.69 95.53, ViM 88.68 93.48 72.08 92.68, GEN 88.20 91.35 76.85 89.76,
        Temperature scaling 88.09 90.97 77.14 87.56, MSP (max softmax) 88.03 90.73 76.02 85.23,
        i-ODIN 87.92 90.99 76.53 89.64, OpenMax 87.62 89.62 74.77 89.26,
        Energy 87.58 91.21 75.89 89.47, MLS (max logit) 87.52 91.10 76.46 89.57,
        ReAct 87.11 90.42 77.38 93.67, MDS (Mahalanobis) 84.20 89.72 55.44 74.25,
        AdaSCALE-A 83.92 88.00 84.42 97.27, ODIN 82.87 87.96 74.75 89.47,
        SCALE 82.55 86.39 81.36 96.53, SHE 81.54 85.32 73.78 90.92,
        KLM (KL matching) 79.19 82.68 76.64 87.60, DICE 78.34 84.23 73.07 90.95,
        ASH-B 75.27 78.49 78.17 95.74, AdaSCALE-L 74.99 79.02 84.27 97.28,
        GradNorm 54.90 57.55 72.96 90.25
    """
    lines = []
    for _, name, cifar10, imagenet, key in _BOARD:
        lines.append(" ".join([name, *(f"{value:.2f}" for value in (*cifar10, *(imagenet or ())))]))
        assert key == "" or key in DETECTORS
    assert ", ".join(lines) == " ".join(published.split())
    by_key = {key: name.lower() for _, name, _, _, key in _BOARD if key}
    for key in ("knn", "fdbd", "vim", "gen", "energy", "react", "scale", "dice", "gradnorm", "nci"):
        assert by_key[key] == key


def test_the_board_stands_beside_ours_and_what_it_tuned_with_is_marked() -> None:
    columns = ("FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC")
    sets = ("cifar100", "tin", "mnist", "svhn", "texture", "places365", "nearood", "farood")
    sets += ("ssb_hard", "ninco", "inaturalist", "textures", "openimage_o")
    run = {name: dict.fromkeys(columns, 50.0) for name in sets}
    methods = {"react": [run], "goen_m_ood": [run]}
    titles = {"react": "ReAct", "goen_m_ood": "goen-m with OOD"}
    for benchmark, near, far, seen in (
        ("cifar10", "87.11", "90.42", [True, False, True, False]),
        ("imagenet", "77.38", "93.67", [False, True, False, True]),
    ):
        table = openood_table(methods, titles, benchmark, {"goen_m_ood"})
        react, goen_m = table.rows
        assert [cell.formatted for cell in react.cells[4:]] == [near, far]
        assert [cell.seen for cell in react.cells] == [False] * 6
        assert [cell.seen for cell in goen_m.cells[:4]] == seen
        assert [cell.formatted for cell in goen_m.cells[4:]] == ["n/a", "n/a"]
        assert any("†: fitted with" in note for note in table.notes)
    assert len(openood_table(methods, titles, "cifar100").columns) == 4


def test_the_board_stands_only_beside_what_is_comparable_with_it() -> None:
    sets = ("cifar100", "tin", "nearood", "svhn", "farood")  # two of four far sets are missing
    run = {name: dict.fromkeys(("FPR@95", "AUROC"), 50.0) for name in sets}
    methods, titles = {"knn_tuned": [run]}, {"knn_tuned": "KNN, tuned on OOD"}
    (row,) = openood_table(methods, titles, "cifar10").rows
    assert [cell.formatted for cell in row.cells[4:]] == ["90.64", "n/a"]
    table = openood_table(methods, titles, "cifar10", full_spectrum=True)
    assert table.title == "OpenOOD 1.5, cifar10, full-spectrum"
    assert len(table.columns) == len(table.rows[0].cells) == 4
    assert "not comparable and not shown" in " ".join(table.notes)


def test_a_higher_mean_is_the_better_one() -> None:
    better = [
        replace(r, value=min(1, r.value + 0.05)) if r.method == "goen" else r for r in results()
    ]
    table = board_table(Comparison(better, SUMMARY))
    assert table is not None
    marks = {row.label: row.cells[0].mark for row in table.rows if row.section == "measured here"}
    assert marks == {"KNN": "", "GOEN": "best"}


def test_several_runs_have_a_mean_and_their_spread() -> None:
    def of(value: float) -> OpenOodRows:
        return {group: {"AUROC": value, "FPR@95": 50.0} for group in ("nearood", "farood")}

    far_alone = {"farood": of(80.0)["farood"]}
    methods = {"react": [of(90.0), of(94.0)], "vim": [of(70.0)], "knn": [far_alone]}
    titles = {"react": "ReAct", "vim": "ViM", "knn": "KNN"}
    table = openood_table(methods, titles, "cifar10")
    cells = {row.label: [cell.formatted for cell in row.cells[:2]] for row in table.rows}
    assert cells == {
        "ReAct": ["92.00 ± 2.00", "92.00 ± 2.00"],
        "ViM": ["70.00", "70.00"],
        "KNN": ["n/a", "80.00"],
    }
    assert "mean ± population standard deviation over 2 runs" in table.notes[0]
    one = openood_table({"vim": [of(70.0)]}, titles, "cifar10")
    assert one.notes[0] == "Per cent, one run."
