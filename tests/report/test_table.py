"""A table in every file format."""

import csv
import io
from dataclasses import replace
from pathlib import Path

from goen.report.table import Cell, Row, Table, as_csv, latex, markdown, marked, write_tables

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


def test_a_number_is_written_without_a_negative_zero() -> None:
    assert [Cell(v, f).formatted for v, f in ((-0.0, ".4f"), (-1e-9, "+.2f"), (-0.5, "+.1f"))] == [
        "0.0000",
        "+0.00",
        "-0.5",
    ]


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


def test_what_is_set_apart_is_separated_in_every_form() -> None:
    apart = replace(TABLE, apart=1)
    lines = markdown(apart).splitlines()
    assert lines[2:7] == [
        "| | x % | | y |",
        "|---|---:|---:|---:|",
        "| *first* | | | |",
        "| one | **0.5000** (0.4000-0.6000) | | n/a |",
        "| *b* | | | |",
    ]
    assert r"\begin{tabular}{lr|r}" in latex(apart)
    assert r"\begin{tabular}{lrr}" in latex(TABLE)
    assert as_csv(apart) == as_csv(TABLE)


def test_the_best_is_marked_if_one_comparable_row_alone_shows_it() -> None:
    def marks(*cells: Cell, higher: bool = True) -> list[str]:
        return [cell.mark for cell in marked(cells, higher_is_better=higher)]

    assert marks(Cell(0.1), Cell(0.3), Cell()) == ["", "best", ""]
    assert marks(Cell(0.1), Cell(0.3), higher=False) == ["best", ""]
    assert marks(Cell(0.1), Cell(0.3, seen=True)) == ["best", ""]
    assert marks(Cell(0.3, seen=True)) == [""]
    assert marks(Cell(), Cell(text="no")) == ["", ""]
    # Equal to all digits shown: neither is the best.
    assert marks(Cell(0.30001), Cell(0.29999), Cell(0.2)) == ["tied", "tied", ""]
    assert marks(Cell(0.3001), Cell(0.2999)) == ["best", ""]
    assert marks(Cell(0.3001, ".2f"), Cell(0.2999, ".2f")) == ["tied", "tied"]
    # A paired test may have found the next one tied with the best.
    assert marks(Cell(0.3), Cell(0.2, mark="tied")) == ["best", "tied"]


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


def test_csv_has_a_column_for_the_dagger_where_a_cell_has_one() -> None:
    cells = (Cell(0.5, spread=0.0, seen=True), Cell(0.25))
    table = Table("t", "t", ("x", "y"), (Row("one", cells), Row("two", (Cell(0.75), Cell(1.0)))))
    assert as_csv(table).splitlines() == [
        "section,row,x,x spread,x calibrated,y",
        ",one,0.5,0.0,True,0.25",
        ",two,0.75,,False,1.0",
    ]


def test_tables_are_written_in_three_forms(tmp_path) -> None:  # type: ignore[no-untyped-def]
    write_tables([TABLE], tmp_path / "tables")
    assert {p.name for p in (tmp_path / "tables").glob("[!.]*")} == {"t.md", "t.tex", "t.csv"}
    assert (tmp_path / "tables" / "t.md").read_text(encoding="utf-8") == markdown(TABLE)


def test_tables_of_another_day_go(tmp_path: Path) -> None:
    write_tables([TABLE, replace(TABLE, name="u")], tmp_path / "tables")
    write_tables([TABLE], tmp_path / "tables")
    names = {p.name for p in (tmp_path / "tables").iterdir()}
    assert names == {".goen", "t.md", "t.tex", "t.csv"}


HOSTILE = ("=1+1", "a\rb", "a\n|b", "<script>x</script>", "\x1b[31m\u202e", "$\\input{x}$")


def test_names_are_no_more_than_names_in_every_format() -> None:
    rows = tuple(Row(name, (Cell(-0.5), Cell(text=name)), name) for name in HOSTILE)
    table = Table("t", HOSTILE[3], HOSTILE[:2], rows, HOSTILE[2:4])
    found = list(csv.reader(io.StringIO(as_csv(table), newline="")))
    assert [line[1].removeprefix("'") for line in found[1:]] == list(HOSTILE)
    assert [line[0] for line in found[1:2]] == ["'=1+1"]
    assert {line[2] for line in found[1:]} == {"-0.5"}
    text = markdown(table)
    assert "\x1b" not in text
    assert "<script" not in text
    lines = [line for line in text.split("\n") if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in lines} == {4}
    assert r"| \x1b[31m\u202e |" in text
    written = latex(table)
    assert r"\$\textbackslash{}input\{x\}\$ &" in written
    assert "\n\n" not in written


def test_a_comparison_in_a_cell_stays_as_it_is() -> None:
    table = Table("t", "p", ("p",), (Row("a", (Cell(text="< 1e-300"),)),))
    assert "| a | < 1e-300 |" in markdown(table)
