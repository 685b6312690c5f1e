"""Tables and page of ``goen geometry``."""

import html
from dataclasses import fields
from pathlib import Path

import pytest

from goen.functional.geometry import Geometry
from goen.io.results import Origin
from goen.report.pages.geometry import geometry_page, geometry_tables
from goen.report.run_folder import read_run
from tests.report.by_hand import geometry
from tests.report.reading import methods_by_title, page_text, tables, values_by_key

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


def test_every_measure_is_defined_below_its_table(tmp_path: Path) -> None:
    run = read_run(geometry(tmp_path / "g"))
    counts = ("num_rows", "num_classes", "dim")
    measures = [f.name for f in fields(Geometry) if f.name not in counts] + ["nc4"]
    origin = Origin("default", "full", 42, "backbone-0", ("train:ab",))
    results = origin.rows("train", "id", {f"z/raw/{name}": 0.5 for name in measures})
    for table in geometry_tables(results, run.summary):
        defined = [text.partition(": ")[0] for text in table.notes[0].split("; ")]
        assert defined == list(table.columns) == [name.replace("_", " ") for name in measures]
        assert "nc1 to nc3 are 0 and nc4 is 1" in table.notes[1]


def test_the_page_defines_the_measures_once_and_every_file_does(reports: dict[str, Path]) -> None:
    definition = "top principal component's share of the variance"
    folder = reports["geometry"]
    assert html.unescape(page_text(folder)).count(definition) == 1
    files = list((folder / "tables").glob("*.md"))
    assert len(files) == 4
    assert all(definition in file.read_text(encoding="utf-8") for file in files)


def test_one_variant_is_in_the_singular(tmp_path: Path) -> None:
    run = read_run(geometry(tmp_path / "g"))
    assert "the features of 2 variants" in str(geometry_page(run, []).summary[0].text)  # type: ignore[union-attr]
    run.results[:] = [r for r in run.results if r.method == "default"]
    assert "the features of 1 variant trained" in str(geometry_page(run, []).summary[0].text)  # type: ignore[union-attr]
