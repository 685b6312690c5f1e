"""Tables and page of ``goen seeds``."""

from pathlib import Path
from statistics import fmean, stdev

import pytest

from goen.runs.results import read_results

from .reading import plain, tables

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
