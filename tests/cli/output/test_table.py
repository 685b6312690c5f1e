"""Tables on the terminal."""

import os
import subprocess
import sys

import pytest

from goen.cli.output.table import print_table
from goen.report.table import Cell, Row, Table


def test_marks_intervals_sections_and_notes_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = (
        Row(
            "[knn] :dog:", (Cell(0.91234, low=0.9, high=0.92), Cell(0.5, mark="tied")), "first part"
        ),
        Row("goen", (Cell(0.95, mark="best", seen=True), Cell(text="-")), "second part"),
    )
    wide = tuple(f"a-rather-long-name-{i}" for i in range(2))
    print_table(Table("t", "A [title]", wide, rows, ("A note with [brackets].",)))
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "A [title]"
    assert "[knn] :dog: 0.9123 ≈0.5000" in lines
    assert ".900-.920" in lines
    assert "goen 0.9500† -" in lines
    assert lines.index("first part") < lines.index("second part")
    assert "A note with [brackets]." in lines
    assert "rather- rather-" in lines  # headers are broken at hyphens, one word per line


def test_a_title_wider_than_the_columns_stays_on_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    title = "AUROC: a title of [many] words, wider than its columns"
    print_table(Table("t", title, ("x",), (Row("knn", (Cell(0.5),)),)))
    assert capsys.readouterr().out.splitlines()[0] == title


def test_a_number_that_ranks_the_wrong_way_round_is_marked_as_in_the_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = (Cell(0.4, inverted=True), Cell(0.3, seen=True, inverted=True), Cell(0.6))
    print_table(Table("t", "A title", ("x", "y", "z"), (Row("knn", cells),)))
    assert "knn 0.4000‡ 0.3000†‡ 0.6000" in " ".join(capsys.readouterr().out.split())


def test_what_is_set_apart_stands_behind_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (
        Row("knn", (Cell(0.91234, low=0.9, high=0.92), Cell(0.5))),
        Row("goen", (Cell(1.0),) * 2),
    )
    print_table(Table("t", "A title", ("unseen", "seen"), rows, apart=1))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "knn 0.9123 │ 0.5000" in lines
    assert ".900-.920 │" in lines
    assert "goen 1.0000 │ 1.0000" in lines


def test_a_wide_table_is_not_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    columns = tuple(f"c{i}" for i in range(30))
    print_table(Table("t", "Wide", columns, (Row("r", (Cell(0.12345),) * 30),)))
    out = capsys.readouterr().out
    assert out.count("0.1235") + out.count("0.1234") == 30
    assert "…" not in out


def test_a_table_whose_reader_goes_away_is_no_error() -> None:
    script = (
        "import sys; from goen.cli import data, main"
        "\nfrom goen.cli.output.table import print_table\n"
        "from goen.report.table import Cell, Row, Table\n"
        "table = Table('t', 'A table', ('x',), (Row('r', (Cell(1.0),)),) * 9999)\n"
        "data.SUBCOMMANDS['list'] = lambda: print_table(table) or 0\n"
        "sys.exit(main.main(['data', 'list']))"
    )
    command = f'{sys.executable} -c "$SCRIPT" | head -n 1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env={**os.environ, "SCRIPT": script},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("A table")
