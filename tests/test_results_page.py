"""The numbers of the pages on CIFAR-10 are those of results/, to the last digit."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from goen.io.results import read_results
from goen.metrics import over_seeds
from goen.studies import METHODS
from goen.studies.published import PUBLISHED

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
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    rows = json.loads(page.GATE.read_text(encoding="utf-8"))["rows"]
    flagged = {row["dataset"]: row["value"] for row in rows if row["metric"] == "flagged"}
    told = f"{flagged['svhn']:.0%} of SVHN and {flagged['tiny-imagenet']:.0%} of Tiny ImageNet"
    assert told.replace("%", " %") in text


def test_the_page_says_of_goen_m_what_the_paired_tests_say(page: ModuleType) -> None:
    lines = page.read_lines(page.RESULTS / "bench-paired.jsonl")
    against = {"dataset": page.MEAN, "method": "goen_m", "against": "goen"}
    pairs = [line for line in lines if against.items() <= line.items()]
    assert len(pairs) == 3
    assert all(line["p_value"] < 0.05 for line in pairs)
    seeds = over_seeds([line["value"] for line in pairs])
    assert seeds.low < 0 < seeds.high
    first, second, third = (f"{line['value']:.3f}" for line in pairs)
    text = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    assert f"by {first}, {second} and {third}" in text
    assert re.search(r"[Ee]ach difference is significant over images", text)
    interval = f"the 95 % interval, {seeds.low:.3f} to {seeds.high:.3f}, still contains 0"
    assert f"ver seeds {interval}" in text


def test_the_text_on_pretrained_features_says_what_was_measured(page: ModuleType) -> None:
    text = " ".join((ROOT / "docs" / "pretrained.md").read_text(encoding="utf-8").split())
    table = page.table("pretrained-layers")
    assert table.columns[:2] == ("near", "far")
    near, far = ({row.label: f"{row.cells[i].value:.3f}" for row in table.rows} for i in range(2))
    bundled, two, last, _, control, both = near
    assert f"near-OOD is {near[last]}; the bundled gate has {near[bundled]}" in text
    assert f"near-OOD falls to {near[two]}" in text
    assert f"Far-OOD is {far[two]} in place of {far[last]}" in text
    assert f"near-OOD {near[both]}, far-OOD {far[both]}" in text
    assert f"network has {near[control]} and {far[control]}" in text
    assert near[two] < near[bundled] < near[last] < near[both]


def test_the_text_on_small_tasks_says_what_was_measured(page: ModuleType) -> None:
    text = " ".join((ROOT / "docs" / "pretrained.md").read_text(encoding="utf-8").split())
    table = page.table("small-tasks")
    rows = {row.label: row.cells for row in table.rows}
    two = "goen_m: middle and last layer"
    first = [row.label for row in table.rows[:4]]
    assert two in first
    assert f"Of {len(rows)} methods the four with the best mean rank are goen-m on several" in text
    for title in first:
        assert title.startswith("goen_m: ")
        assert title.endswith(" and last layer")
        if title != two:  # no difference is significant, so the default stays
            low, high = rows[title][4].low, rows[title][4].high
            assert low is not None
            assert high is not None
            assert low < 0 < high
            assert f"{rows[title][4].formatted} ({rows[title][4].interval})" in text
    for title in ("goen", "goen_m: last layer", "mahalanobis_pp", "Mahalanobis++, ridge 1"):
        assert f"{rows[title][4].formatted} ({rows[title][4].interval})" in text, title
    last = rows["goen_m: last layer"]
    near, far, mean = ((last[i].formatted, rows[two][i].formatted) for i in (1, 2, 3))
    assert f"({near[0]}, two layers {near[1]}) and worse on far-OOD ({far[0]}, two" in text
    without = rows["goen_m: last layer, no held-out images"][3].formatted
    assert f"mean AUROC of {without}, with them {mean[0]}; the difference was not tested" in text
    tasks = page.table("small-tasks-by-task")
    digits = dict(zip(tasks.columns, tasks.rows[-1].cells, strict=True))
    assert tasks.rows[-1].label == "mnist"
    assert f"far-OOD AUROC of {digits['max_softmax; far'].formatted}, far below chance" in text
    images = [dict(zip(tasks.columns, row.cells, strict=True)) for row in tasks.rows]
    assert all(row["training images"].value < 1280 for row in images)


def test_the_text_on_few_images_says_what_was_measured(page: ModuleType) -> None:
    text = " ".join((ROOT / "docs" / "methods" / "goen-m.md").read_text(encoding="utf-8").split())
    table = page.table("few-images")
    value = {
        (row.label, column): cell.value
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
    }
    gains = [
        value["class mean", f"{n} per class"] - value["goen-m", f"{n} per class"]
        for n in (2, 5, 10, 50)
    ]
    told = "by {:.3f} (2 of a class), {:.3f} (5), {:.3f} (10) and {:.3f} (50)".format(*gains)
    assert told in text
    for first, second in ((1, 2), (2, 3), (3, 5), (5, 10)):
        for column in table.columns:
            assert value[f"neighbour {first}", column] > value[f"neighbour {second}", column]
    few, all_rows, mean = (
        f"{value[name, '50 per class']:.3f}"
        for name in ("goen-m, 5 rows of a class", "goen-m", "class mean")
    )
    assert f"they give {few}; all 50 rows give {all_rows}" in text
    assert f"seen all images, {mean}" in text
    best = [f"{value['relative, ridge 1', f'{n} per class']:.3f}" for n in (10, 50)]
    assert f"({', '.join(best)})" in text
    assert f"({value['relative, ridge 1', '1, but five classes 50']:.3f}, below chance" in text


def test_a_row_that_has_seen_a_kind_is_bold_in_none_of_its_columns(page: ModuleType) -> None:
    for name in ("seeds", "ablation", "baselines"):
        table = page.table(name)
        assert table.columns[0] == "unseen"
        assert table.columns[table.apart :] == ("svhn", "noise", "paper's three")
        for row in table.rows:
            assert not any(cell.seen for cell in row.cells[: table.apart])
            assert not any(cell.seen and cell.mark for cell in row.cells)
        assert any(cell.seen for row in table.rows for cell in row.cells)
        accuracy = table.columns.index("accuracy")
        assert not any(row.cells[accuracy].mark for row in table.rows)


def test_one_seed_does_not_compete_with_means_of_three(page: ModuleType) -> None:
    table = page.table("baselines")
    alone = [row for row in table.rows if row.cells[0].spread is None]
    assert "goen-m, flip-averaged" in {row.label for row in alone}  # the highest of its column
    assert not any(cell.mark for row in alone for cell in row.cells)
    assert {row.label for row in table.rows if row.cells[0].mark == "best"} == {"goen-m"}


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
        if file.name == PUBLISHED:  # of a gate whose seed is not bundled
            assert set(summary) == {"versions", "hardware", "rows"}, file
            continue
        assert {"versions", "hardware", "config"} <= set(summary), file
        for r in read_results(file.with_suffix(".jsonl")):
            assert r.network.startswith("backbone-")
            assert r.fitted_on


def test_the_results_name_their_methods_as_the_benchmark_does() -> None:
    files = [
        f for f in (ROOT / "results").rglob("bench-*.jsonl") if f.with_suffix(".json").is_file()
    ]
    methods = {r.method for f in files for r in read_results(f)}
    assert "goen_m_flip_averaged" in methods
    assert methods <= METHODS.keys()
