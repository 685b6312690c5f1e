"""The page of all methods on all networks."""

import html
from pathlib import Path

import pytest

from goen.report import write_board
from goen.report.board import board_tables, networks
from goen.report.summary import read_study

KEPT = Path(__file__).parents[3] / "results" / "cifar10"

pytestmark = pytest.mark.xdist_group("report")


def test_every_number_of_the_tables_is_on_the_page(tmp_path: Path) -> None:
    studies = {name: read_study(KEPT / f"{name}.jsonl") for name in ("baselines-42", "fast-42")}
    path = write_board(studies, tmp_path / "board")
    text = html.unescape(path.read_text(encoding="utf-8"))
    for table in board_tables(networks(studies)):
        assert f'id="table-{table.name}" data-filters="{"|".join(table.filters)}"' in text
        for cell in (cell for row in table.rows for cell in row.cells if not cell.missing):
            assert cell.formatted in text
            assert cell.interval.replace("-", "–") in text
        for form in ("md", "tex", "csv"):
            assert (path.parent / f"{table.name}.{form}").is_file()
    assert "they are published ones, of other networks, not ours" in text
    assert "<td>goen bench</td><td>fast</td>" in text
