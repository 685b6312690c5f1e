"""What bench and ablate share: the numbers of the results, in tables and figures."""

from pathlib import Path
from statistics import fmean

import pytest

from goen.report.ablate import ablate_page
from goen.report.run_folder import read_run

from .by_hand import ablate
from .reading import methods_by_title, plain, tables, values_by_key

pytestmark = pytest.mark.xdist_group("report")


@pytest.mark.parametrize("study", ["bench", "ablate"])
def test_a_comparison_shows_the_results(study: str, reports: dict[str, Path]) -> None:
    folder = reports[study]
    values, by_title = values_by_key(folder), methods_by_title(folder)
    found = tables(folder / "report.html")
    for metric in ("auroc", "fpr95_ood_positive", "fpr95_id_positive"):
        checked = 0
        for (section, label, column), cell in found[metric].cells().items():
            method = by_title[section, label]
            dataset, bracket, _ = column.partition(" (")
            if bracket:
                assert plain(cell.text) == f"{values[method, dataset, metric]:.4f}"
                checked += 1
            elif column == "mean unseen":
                mean = fmean(values[method, name, metric] for name in ("near-set", "far-set"))
                assert plain(cell.text) == f"{mean:.4f}"
        assert checked == 3 * len(by_title)


def test_a_dataset_that_one_method_lacks_is_marked_in_the_figure(tmp_path: Path) -> None:
    folder = ablate(tmp_path / "a")
    lines = (folder / "results.jsonl").read_text().splitlines()
    gone = [i for i, line in enumerate(lines) if '"concat"' in line and "far-set" in line]
    kept = [line for i, line in enumerate(lines) if i not in gone]
    (folder / "results.jsonl").write_text("\n".join(kept) + "\n")
    page = ablate_page(read_run(folder), [])
    alts = [d.alt for block in page.sections[0].blocks for d in getattr(block, "drawings", ())]
    assert any("far-set" in alt and "CenterLoss not measured" in alt for alt in alts)
