"""docs/methods/README.md lists every detector, with its class and what it needs."""

from pathlib import Path

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
