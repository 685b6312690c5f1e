"""The page of the paper's tables."""

import html
import re
from pathlib import Path

import pytest

from goen.report import write_paper
from goen.report.pages.paper import paper_page
from goen.report.paper_tables import paper_tables, read_papers_study
from goen.report.table import Table

KEPT = Path(__file__).parents[3] / "results" / "cifar10"
STUDIES = [read_papers_study(KEPT / f"{name}.jsonl") for name in ("baselines-42", "ablate-42")]

pytestmark = pytest.mark.xdist_group("report")


def test_every_number_of_the_tables_is_on_the_page_and_nothing_else_is() -> None:
    tables = paper_tables(STUDIES)
    page = paper_page(tables, STUDIES)
    shown = [block for block in page.blocks() if isinstance(block, Table)]
    first, second, third = tables
    ours = {
        (row.section, method, line): cell
        for part in shown[:2]
        for row in part.rows
        for method, line, cell in zip(
            [row.label] * len(part.columns), part.columns, row.cells, strict=True
        )
    }
    expected = {
        (row.section, method, row.label): cell
        for row in first.rows
        for method, cell in zip(first.columns, row.cells, strict=True)
    }
    assert ours == expected
    assert [part.columns[0] for part in shown[:2]] == ["ID Acc", "SVHN AUROC"]
    assert shown[2].rows == second.rows
    assert shown[3].rows == third.rows


def test_the_papers_numbers_are_above_ours_and_studies_are_named(tmp_path: Path) -> None:
    path = write_paper(STUDIES, tmp_path / "paper")
    text = html.unescape(path.read_text(encoding="utf-8"))
    assert "from 1 study of goen bench and 1 study of goen ablate." in text
    sections = re.findall(r'<tr class="part"><th [^>]*>([^<]*)<', text)
    assert sections == ["the paper", "goen, preset short, budget full, seeds 42"] * 3
    assert "No study of goen seeds was given: Table 3 has the paper's numbers alone." in text
    assert "No study of goen bench" not in text
    assert text.count("which is the set noise") == 1  # the notes of all tables, once
    assert "<td>goen ablate</td><td>short</td><td>full</td><td>42</td>" in text
    for number in (1, 2, 3):
        for form in ("md", "tex", "csv"):
            assert (path.parent / f"paper-table-{number}.{form}").is_file()
