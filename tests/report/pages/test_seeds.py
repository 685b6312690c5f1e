"""Tables and page of ``goen seeds``."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from goen.io.results import Result, read_results
from goen.report.pages.seeds import seeds_tables
from goen.report.run_folder import read_run
from tests.report.by_hand import seeds
from tests.report.reading import plain, tables

pytestmark = pytest.mark.xdist_group("report")


def test_seeds_show_mean_spread_and_each(reports: dict[str, Path]) -> None:
    folder = reports["seeds"]
    rows = read_results(folder / "results.jsonl")
    found = tables(folder / "report.html")
    values = [
        r.value for r in rows if r.method == "goen" and (r.dataset, r.metric) == ("noise", "auroc")
    ]
    cells = {c: cell for (_, label, c), cell in found["auroc"].cells().items() if label == "GOEN"}
    assert plain(cells["noise"].text) == f"{fmean(values):.4f} ± {stdev(values):.4f}"
    assert cells["noise least"].text == f"{min(values):.4f}"
    each = [
        c.text
        for (section, _, column), c in found["each_seed"].cells().items()
        if section == "GOEN" and column == "noise"
    ]
    assert each == [f"{value:.4f}" for value in values]
    near, far = (
        [r.value for r in rows if (r.method, r.dataset, r.metric) == ("goen", name, "auroc")]
        for name in ("near-set", "far-set")
    )
    means = [(a + b) / 2 for a, b in zip(near, far, strict=True)]  # a seed's mean, then theirs
    assert plain(cells["mean unseen"].text) == f"{fmean(means):.4f} ± {stdev(means):.4f}"
    brier = [r.value for r in rows if (r.method, r.metric) == ("classifier", "brier")]
    shown = found["classifier"].cells()["", "Brier score", "mean"]
    assert plain(shown.text) == f"{fmean(brier):.4f} ± {stdev(brier):.4f}"


def test_unseen_sets_come_first_and_calibration_kinds_are_set_apart(tmp_path: Path) -> None:
    run = read_run(seeds(tmp_path / "s"))
    noise_first = sorted(run.results, key=lambda r: r.dataset != "noise")
    seen = [replace(r, seen_in_calibration=is_head_on_noise(r)) for r in noise_first]
    auroc, _, each = seeds_tables(seen, run.summary)
    assert auroc.columns[::3] == each.columns == ("mean unseen", "near-set", "far-set", "noise")
    assert (auroc.apart, each.apart) == (9, 3)
    head = next(row for row in auroc.rows if row.label == "GOEN")
    assert [cell.seen for cell in head.cells[::3]] == [False, False, False, True]
    assert [[c.seen for c in row.cells] for row in each.rows if row.section == "GOEN"] == (
        3 * [[False, False, False, True]]
    )
    assert any("the calibration kinds: noise, of which" in note for note in auroc.notes)


def is_head_on_noise(result: Result) -> bool:
    return (result.method, result.dataset) == ("goen", "noise")
