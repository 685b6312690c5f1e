"""Tables and page of ``goen ablate``."""

import json
from pathlib import Path

import pytest

from goen.report.registry import study_tables
from goen.report.summary import Summary
from goen.runs.results import read_results

from .by_hand import ablate
from .reading import methods_by_title, plain, tables, values_by_key

pytestmark = pytest.mark.xdist_group("report")


def test_differences_in_the_ablation_are_of_results(reports: dict[str, Path]) -> None:
    folder = reports["ablate"]
    values, by_title = values_by_key(folder), methods_by_title(folder)
    for (section, label, column), cell in (
        tables(folder / "report.html")["differences"].cells().items()
    ):
        dataset = column.partition(" (")[0]
        own = values[by_title[section, label], dataset, "auroc"]
        assert plain(cell.text) == f"{own - values['default', dataset, 'auroc']:+.4f}"
        assert cell.text.startswith("≈") == (dataset != "noise")


def test_a_difference_is_marked_where_either_row_was_calibrated_with_the_kind(
    reports: dict[str, Path],
) -> None:
    found = tables(reports["ablate"] / "report.html")
    shown = found["differences"].cells()
    assert {section for section, _, _ in shown} == {"with the calibrated head", "distance alone"}
    for (_, _, column), cell in shown.items():  # the default, which is subtracted, was
        assert cell.text.endswith("†") == (column == "noise")
    for (section, _, column), cell in found["center_loss"].cells().items():
        seen = column == "noise" and section == "with the calibrated head"
        assert cell.text.endswith("†") == seen
    for name in ("differences", "center_loss"):
        text = (reports["ablate"] / "tables" / f"{name}.md").read_text(encoding="utf-8")
        assert "†: they were, for the row or for the one that is subtracted." in text


def test_an_ablation_without_a_pair_to_compare_has_no_table_of_pairs(tmp_path: Path) -> None:
    folder = ablate(tmp_path / "a")
    results = [r for r in read_results(folder / "results.jsonl") if r.method == "default"]
    summary = json.loads((folder / "run.json").read_text())
    summary["titles"] = {"default": summary["titles"]["default"]}
    assert all(table.rows for table in study_tables(results, Summary.from_json(summary)))
