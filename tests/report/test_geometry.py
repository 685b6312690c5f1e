"""Tables and page of ``goen geometry``."""

from pathlib import Path

import pytest

from .reading import methods_by_title, tables, values_by_key

pytestmark = pytest.mark.xdist_group("report")


def test_geometry_shows_the_results_and_fills_nothing_in(reports: dict[str, Path]) -> None:
    folder = reports["geometry"]
    values, by_title = values_by_key(folder), methods_by_title(folder)
    kinds = {"raw": "raw", "scaled to unit length": "unit"}
    texts = set()
    for (section, label, column), cell in tables(folder / "report.html")["z_train"].cells().items():
        metric = f"z/{kinds[section]}/{column.replace(' ', '_')}"
        value = values.get((by_title["", label], "train", metric))
        assert cell.text == ("n/a" if value is None else f"{value:.4g}")
        texts.add(cell.text)
    assert {"n/a", "0.7"} <= texts
