"""Tables hold the numbers of the results, in every file format."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from goen.report.bench import bench_tables
from goen.report.summary import Summary
from goen.report.table import Cell, Row, Table, as_csv, latex, markdown, write_tables
from goen.runs.results import Origin, Result

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


def test_a_number_is_written_without_a_negative_zero() -> None:
    assert [Cell(v, f).formatted for v, f in ((-0.0, ".4f"), (-1e-9, "+.2f"), (-0.5, "+.1f"))] == [
        "0.0000",
        "+0.00",
        "-0.5",
    ]


def test_lower_is_better_where_it_is() -> None:
    tables = {table.name: table for table in bench_tables(results(), SUMMARY)}
    assert list(tables) == ["auroc", "fpr95_ood_positive", "fpr95_id_positive", "classifier"]
    fpr = {row.label: row.cells[0] for row in tables["fpr95_ood_positive"].rows}
    assert {k: c.mark for k, c in fpr.items()} == {"Max softmax": "", "KNN": "", "GOEN": "best"}
    cost = tables["classifier"].rows[0].cells
    assert [c.formatted for c in cost] == ["0.9000", "0.0200", "0.3000", "0.1000", "60", "1.25"]


TABLE = Table(
    "t",
    "A & B_1",
    ("x %", "y"),
    (
        Row("one", (Cell(0.5, low=0.4, high=0.6, mark="best"), Cell(None)), "first"),
        Row("two", (Cell(0.25, low=0.2, high=0.3, mark="tied", seen=True), Cell(text="no")), "b"),
    ),
    ("Mind the gap.",),
)


def test_markdown() -> None:
    assert markdown(TABLE).splitlines() == [
        "**A & B_1**",
        "",
        "| | x % | y |",
        "|---|---:|---:|",
        "| *first* | | |",
        "| one | **0.5000** (0.4000-0.6000) | n/a |",
        "| *b* | | |",
        "| two | ≈ 0.2500† (0.2000-0.3000) | no |",
        "",
        "Mind the gap.",
    ]


def test_an_interval_with_signs_has_no_dash_between_its_ends() -> None:
    assert Cell(0.01, "+.2f", low=-0.02, high=0.04).interval == "-0.02 to +0.04"


def test_latex_is_escaped_and_uses_booktabs() -> None:
    text = latex(TABLE)
    assert r"\caption{A \& B\_1. Mind the gap.}" in text
    assert r" & x \% & y \\" in text
    assert r"one & \textbf{0.5000} {\scriptsize 0.4000-0.6000} & n/a \\" in text
    assert r"two & $\approx$ 0.2500$^\dagger$ {\scriptsize 0.2000-0.3000} & no \\" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")


def test_csv_keeps_every_digit(tmp_path: object) -> None:
    table = Table("t", "t", ("x",), (Row("one", (Cell(1 / 3, low=0.1, high=0.5),)),))
    rows = list(csv.reader(io.StringIO(as_csv(table))))
    assert rows[0] == ["section", "row", "x", "x low", "x high"]
    assert float(rows[1][2]) == 1 / 3
    spread = Table("t", "t", ("x",), (Row("one", (Cell(0.5, spread=0.125),)),))
    assert as_csv(spread).splitlines() == ["section,row,x,x spread", ",one,0.5,0.125"]
    assert "| one | 0.5000 ± 0.1250 |" in markdown(spread)
    assert r"one & 0.5000 $\pm$ 0.1250 \\" in latex(spread)


def test_tables_are_written_in_three_forms(tmp_path) -> None:  # type: ignore[no-untyped-def]
    write_tables([TABLE], tmp_path / "tables")
    assert {p.name for p in (tmp_path / "tables").glob("[!.]*")} == {"t.md", "t.tex", "t.csv"}
    assert (tmp_path / "tables" / "t.md").read_text(encoding="utf-8") == markdown(TABLE)


def test_tables_of_another_day_go_and_what_others_put_there_stays(tmp_path: Path) -> None:
    write_tables([TABLE, replace(TABLE, name="u")], tmp_path)
    (tmp_path / "mine.md").write_text("mine")
    write_tables([TABLE], tmp_path)
    names = {p.name for p in tmp_path.glob("[!.]*")}
    assert names == {"t.md", "t.tex", "t.csv", "mine.md"}
