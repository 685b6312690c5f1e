"""docs/methods/board.md has the numbers of results/, computed here a second time."""

import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from scipy.stats import rankdata

from goen.detectors import DETECTORS
from goen.report.openood_board import published
from goen.studies import METHODS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods" / "board.md").read_text(encoding="utf-8")
NEAR = [["cifar100", "cifar100-rest"], ["tiny-imagenet"]]
FAR = [["mnist"], ["svhn"], ["textures"], ["places"]]
UNSEEN = ["cifar100", "cifar100-rest", "tiny-imagenet", "mnist", "textures", "places"]


def rows(table: str) -> dict[str, dict[str, dict[str, str]]]:
    """The rows of a table, by section and first cell; without what separates columns."""
    block = PAGE.partition(f"<!-- begin {table} -->")[2].partition(f"<!-- end {table} -->")[0]
    lines = [line for line in block.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, found, section = cells[0][1:], {}, ""
    for first, *others in cells[2:]:
        if first.startswith("*"):
            section = first.strip("*")
        else:
            found.setdefault(section, {})[first] = dict(zip(head, others, strict=True))
    return found


def number(text: str) -> float:
    return float(re.sub(r"[≈*†‡ ]|\(.*", "", text))


def fast(seed: int) -> dict[str, dict[str, float]]:
    file = ROOT / "results" / "cifar10" / f"fast-{seed}.jsonl"
    found: dict[str, dict[str, float]] = {}
    for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        if line["metric"] == "auroc":
            found.setdefault(line["method"], {})[line["dataset"]] = line["value"]
    return found


@pytest.fixture(scope="module")
def by_seed() -> list[dict[str, dict[str, float]]]:
    return [fast(seed) for seed in (42, 123, 2024)]


def test_near_and_far_of_the_fast_network(by_seed: list[dict[str, dict[str, float]]]) -> None:
    told = rows("board-cifar10")["network of preset fast"]
    assert {METHODS[key].title for key in by_seed[0]} == {*told}
    for key in by_seed[0]:
        for column, parts in (("near", NEAR), ("far", FAR)):
            values = [mean(mean(f[key][s] for s in part) for part in parts) for f in by_seed]
            assert number(told[METHODS[key].title][column]) == round(mean(values), 4), key


def test_the_ranks_of_the_fast_network(by_seed: list[dict[str, dict[str, float]]]) -> None:
    methods = list(by_seed[0])
    ranks = [rankdata([-f[m][name] for m in methods]) for f in by_seed for name in UNSEEN]
    told = rows("board-cifar10")["network of preset fast"]
    overview = {k: v for part in rows("board").values() for k, v in part.items()}
    for place, method in enumerate(methods):
        expected = round(mean(float(one[place]) for one in ranks), 1)
        title = METHODS[method].title
        assert number(told[title]["mean rank"]) == pytest.approx(expected, abs=0.051)
        column = f"network of preset fast, of {len(methods)}"
        assert number(overview[title][column]) == pytest.approx(expected, abs=0.051)


def test_the_ranks_of_a_pretrained_network() -> None:
    file = ROOT / "results" / "pretrained" / "small-tasks.jsonl"
    lines: list[dict[str, Any]] = list(map(json.loads, file.read_text("utf-8").splitlines()))[1:]
    every = set.intersection(
        *({t for t, v in line["auroc"].items() if v is not None} for line in lines)
    )
    titles = sorted(t for t in every if t in DETECTORS or t == "goen_m: last layer")
    own = [line["auroc"] for line in lines if line["network"] == "resnet50-augnet"]
    assert len(own) == 7
    ranks = [rankdata([-v[t][kind] for t in titles]) for v in own for kind in (0, 1)]
    overview = {k: v for part in rows("board").values() for k, v in part.items()}
    shown = {"goen": "GOEN, distance only", "goen_m: last layer": "goen-m, last layer"}
    for place, name in enumerate(titles):
        title = shown.get(name) or METHODS[name].title
        told = number(overview[title][f"resnet50-augnet, of {len(titles)}"])
        assert told == pytest.approx(mean(float(one[place]) for one in ranks), abs=0.051), name


def test_needs_and_published_figures_of_every_row() -> None:
    by_title = {method.title: method for method in METHODS.values()}
    sections = rows("board-cifar10")
    for section, by_method in sections.items():
        if "alone" in section:
            continue
        for title, row in by_method.items():
            method = by_title[title]
            assert row["needs"] == ", ".join(method.needs)
            near, far = published().get(method.key, (None, None))
            texts = [f"{cell.value:.4f}" if cell else "n/a" for cell in (near, far)]
            assert [row["OpenOOD board: near"], row["OpenOOD board: far"]] == texts
    assert "NAC-UE" in sections["OpenOOD board alone: not measured here"]
