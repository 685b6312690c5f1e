"""What the false-alarm rate of boxes means for images of several boxes: python recipes/boxes.py

The scores of an image's boxes have a part in common (its light, its scene): a correlation of 0 or
0.8. An image has one to nine boxes. In each repetition there are G held-out images and one new one,
all ID; the rate is 0.05. Counted are, of the new image, a box drawn at random that is flagged by a
gate that takes all boxes for independent, and by one that knows the groups; whether any box is
flagged by that gate; and whether the p-value of the whole image is at most the rate.

Writes results/boxes/simulation.jsonl.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray
from scipy.stats import binomtest

from goen.functional.conformal import grouped_p_values, p_values
from goen.io.provenance import hardware, versions
from goen.report.table import Cell, Row, Table

OUT = Path(__file__).parents[1] / "results" / "boxes" / "simulation.jsonl"
RATE, SIZES, CORRELATIONS, LEVELS = 0.05, (20, 50, 200, 1000), (0.0, 0.8), (0, 4)
COUNTED = {
    "independent": "a box, boxes taken for independent",
    "grouped": "a box, with groups",
    "any": "any box of the image, with groups",
    "whole": "the image by its p-value",
}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Counted:
    """How often one thing happened.

    Attributes:
        what: a key of ``COUNTED``.
        images: held-out ones, G.
        correlation: of the scores of one image's boxes.
        ties: whether scores are rounded.
        repetitions: how many.
        count: of these, how often.
    """

    what: str
    images: int
    correlation: float
    ties: bool
    repetitions: int
    count: int


def draw(
    rng: np.random.Generator, images: int, correlation: float, levels: int
) -> tuple[Floats, NDArray[np.int64]]:
    """The scores of the boxes of so many images, and the image of each box."""
    image = np.arange(images).repeat(rng.integers(1, 10, images))
    common = np.sqrt(correlation) * rng.normal(size=images)[image]
    scores = common + np.sqrt(1 - correlation) * rng.normal(size=len(image))
    return (np.round(levels * scores) / levels if levels else scores), image


def simulate(images: int, correlation: float, levels: int, repetitions: int) -> Iterator[Counted]:
    """Everything that is counted, on the same draws."""
    rng = np.random.default_rng(images)
    counts = dict.fromkeys(COUNTED, 0)
    for _ in range(repetitions):
        held_out, image = draw(rng, images, correlation, levels)
        new, _ = draw(rng, 1, correlation, levels)
        chosen = rng.integers(len(new))
        grouped = grouped_p_values(new, held_out, image) <= RATE
        highest = np.full(images, -np.inf)
        np.maximum.at(highest, image, held_out)
        counts["independent"] += bool(p_values(new[chosen], held_out) <= RATE)
        counts["grouped"] += bool(grouped[chosen])
        counts["any"] += bool(grouped.any())
        counts["whole"] += bool(p_values(new.max(), highest) <= RATE)
    for what, count in counts.items():
        yield Counted(what, images, correlation, levels > 0, repetitions, count)


def table(file: Path = OUT) -> Table:
    """The table of docs/boxes.md."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    found: dict[tuple[float, bool, int], list[Cell]] = {}
    for row in (Counted(**line) for line in lines):
        low, high = binomtest(row.count, row.repetitions).proportion_ci()
        cell = Cell(row.count / row.repetitions, ".1%", low=float(low), high=float(high))
        found.setdefault((row.correlation, row.ties, row.images), []).append(cell)
    body = tuple(
        Row(f"{images:,} held-out images{', ties' * ties}", tuple(cells), f"correlation {rho:g}")
        for (rho, ties, images), cells in found.items()
    )
    title = f"How often something is flagged in an ID image, rate {RATE:g}"
    return Table("boxes-simulation", title, tuple(COUNTED.values()), body)


def main(repetitions: int = 5000) -> None:
    """Simulate, print and write.

    Args:
        repetitions: of each row.
    """
    rows = []
    for correlation in CORRELATIONS:
        for levels in LEVELS:
            for images in SIZES:
                for row in simulate(images, correlation, levels, repetitions):
                    rows.append(row)
                    print(row, flush=True)
    made = {"versions": versions(), "hardware": hardware(), "config": {"rate": RATE}}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    lines = [made, *map(asdict, rows)]
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
