"""What the pages say of CIFAR-10 is what lies in results/, to the last digit."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from goen.runs.results import read_results

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "recipes")
        yield importlib.import_module("page")


def test_the_tables_of_the_pages_are_those_of_the_results(page: ModuleType) -> None:
    for path in page.PAGES:
        text = path.read_text(encoding="utf-8")
        assert "<!-- begin " in text
        assert page.rendered(text) == text, f"{path.name} is out of date: python recipes/page.py"


def test_the_readme_says_what_was_published(page: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = json.loads(page.GATE.read_text(encoding="utf-8"))["rows"]
    values = {(row["dataset"], row["metric"]): row["value"] for row in rows}
    for name in {dataset for dataset, _ in values} - {"test"}:
        told = f"{values[name, 'auroc']:.3f}, {100 * values[name, 'flagged']:.0f} %"
        assert told in text, name
    assert f"{values['test', 'accuracy']:.2%}".replace("%", " %") in text
    assert f"{100 * values['test', 'flagged']:.1f} % of CIFAR-10's test images" in text


def test_an_altered_number_would_be_noticed(page: ModuleType) -> None:
    path = page.PAGES[0]
    text = path.read_text(encoding="utf-8")
    table = text[text.index("<!-- begin seeds -->") : text.index("<!-- end seeds -->")]
    number = next(word for word in table.split() if word.startswith("0."))
    assert page.rendered(text.replace(number, "0.1234")) == text


def test_every_recipe_is_in_the_list_and_every_name_in_the_list_is_a_recipe() -> None:
    told = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"recipes/(\w+\.(?:sh|py))", told))
    there = {f.name for f in (ROOT / "recipes").iterdir() if f.suffix in (".sh", ".py")}
    assert named == there - {"keep.py", "sets.py"}  # which the others call


def test_every_result_says_where_it_comes_from() -> None:
    studies = sorted(f for f in (ROOT / "results").rglob("*.json"))
    assert studies
    for file in studies:
        summary = json.loads(file.read_text(encoding="utf-8"))
        assert {"versions", "hardware", "config"} <= set(summary), file
        for r in read_results(file.with_suffix(".jsonl")):
            assert r.network.startswith("backbone-")
            assert r.fitted_on
