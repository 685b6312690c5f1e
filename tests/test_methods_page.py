"""docs/methods/README.md lists every detector, with its class and what it needs."""

import json
import re
from pathlib import Path
from statistics import mean

import pytest

from goen.detectors import DETECTORS, needs_of
from goen.studies import METHODS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Defaults")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| `")
]


def test_every_detector_has_one_row_in_order() -> None:
    assert [name for name, *_ in ROWS] == [f"`{name}`" for name in sorted(DETECTORS)]


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_a_row_has_the_class_and_what_it_needs(name: str) -> None:
    detector = DETECTORS[name]()
    [(_, fails, needs, paper, of)] = [row for row in ROWS if row[0] == f"`{name}`"]
    assert of == type(detector).__name__
    reads_feature = hasattr(detector, "feature") or name == "goen_m"
    found = {
        "classifier": detector.needs_classifier,
        "feature": reads_feature and not detector.needs_classifier,
        "held-out": detector.calibrates(with_ood=False),
        "gradient": detector.needs_gradient,
    }
    assert needs == (", ".join(key for key, needed in found.items() if needed) or "logits")
    assert needs == ", ".join(needs_of(detector))
    assert paper
    assert fails


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_every_detector_is_compared_by_the_benchmark(name: str) -> None:
    # Of networks with an uncertainty of their own; on the network of a user alone.
    assert name in METHODS or name in {"uncertainty", "goen_m_last"}


def test_a_row_says_where_a_default_is_far_below_max_softmax() -> None:
    kept = ROOT / "results" / "cifar10" / "board-42"
    summary = json.loads(kept.with_suffix(".json").read_text(encoding="utf-8"))
    auroc: dict[str, dict[str, float]] = {}
    for line in map(json.loads, kept.with_suffix(".jsonl").read_text("utf-8").splitlines()):
        ordinary = summary["networks"][line["method"]] == "standard"
        if ordinary and line["metric"] == "auroc" and line["dataset"] not in ("svhn", "noise"):
            auroc.setdefault(line["method"], {})[line["dataset"]] = line["value"]
    assert {len(values) for values in auroc.values()} == {6}
    means = {method: mean(values.values()) for method, values in auroc.items()}
    below = {method: means["max_softmax"] - value for method, value in means.items()}
    told = {
        row[0].strip("`"): re.findall(r"on the ordinary network ([\d.]+) below", row[1])
        for row in ROWS
    }
    assert {name: found for name, found in told.items() if found} == {
        method: [f"{value:.2f}"] for method, value in below.items() if value > 0.05
    }
