"""How often a gate with an error rate breaks its promise, on simulated images:
python recipes/error_rate.py

A simulated image has a score (the gate flags the highest), an uncertainty (1 - confidence, which
orders those that are not flagged) and an answer that is wrong or right. A population of 100,000 of
them is known; n are drawn from it, with replacement, as held-out images, and the images to accept
are chosen from those as ``Gate.with_error_rate`` does. The promise is broken if the share of wrong
answers among the accepted images of the whole population is above the rate. Beside it two
procedures without a guarantee: the largest coverage whose share of errors among the held-out images
is at most the rate, and the largest that passes an exact test at the full level.

Writes results/error-rate/simulation.jsonl.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray
from scipy.stats import beta, binom

from goen.functional.conformal import threshold_rank
from goen.functional.selective import Selection, select, selections
from goen.io.provenance import hardware, versions
from goen.report.table import Cell, Row, Table

OUT = Path(__file__).parents[1] / "results" / "error-rate" / "simulation.jsonl"
RATE, CONFIDENCE, FALSE_ALARMS = 0.05, 0.95, 0.05
SIZES = (200, 500, 1000, 3000)
POPULATION = 100_000
Floats = NDArray[np.float64]
Population = tuple[Floats, Floats, NDArray[np.bool_]]
Choice = Callable[[Floats, NDArray[np.bool_]], Selection | None]


@dataclass(frozen=True)
class Counted:
    """One row: how often the promise was broken.

    Attributes:
        population: which one.
        procedure: how the images to accept were chosen.
        held_out: n.
        repetitions: of the draw of the held-out images.
        broken: how many of them had a share of errors above the rate.
        accepted_any: in how many any image was accepted.
        coverage: mean share of the population that is accepted.
        low: lower end of the exact 95 % interval of the share of broken promises.
        high: upper end.
    """

    population: str
    procedure: str
    held_out: int
    repetitions: int
    broken: int
    accepted_any: int
    coverage: float
    low: float
    high: float


def populations(rng: np.random.Generator) -> Iterator[tuple[str, Population]]:
    """Scores, uncertainties and errors of the whole population."""
    sure = rng.random(POPULATION)
    score = sure + rng.normal(0, 0.4, POPULATION)

    def answers(risk: Floats | float) -> NDArray[np.bool_]:
        return rng.random(POPULATION) < risk

    yield "errors where uncertain", (score, sure, answers(0.5 * sure**4))
    coarse = np.floor(5 * sure) / 5
    yield "the same with 5 values", (np.floor(5 * score), coarse, answers(0.5 * coarse**4))
    yield "ordered by the score", (score, score, answers(0.5 * sure**4))
    yield "errors where certain", (score, sure, answers(np.where(sure < 0.2, 0.2, 0.02)))
    # Every coverage is just above the rate: whatever is accepted breaks the promise.
    wrong = np.zeros(POPULATION, bool)
    wrong[:: round(1 / RATE) - 1] = True
    yield "risk above the rate everywhere", (score, sure, wrong)


def without_guarantee(scores: Floats, wrong: NDArray[np.bool_]) -> Selection | None:
    """The most images whose share of errors is at most the rate."""
    found = [one for one in selections(scores, wrong, CONFIDENCE) if one.errors <= RATE * one.count]
    return max((one for one in found if one.count), key=lambda one: one.count, default=None)


def undivided(scores: Floats, wrong: NDArray[np.bool_]) -> Selection | None:
    """The most images that pass an exact test, each at the full level."""
    found = [
        one
        for one in selections(scores, wrong, CONFIDENCE)
        if one.count and binom.cdf(one.errors, one.count, RATE) <= 1 - CONFIDENCE
    ]
    return max(found, key=lambda one: one.count, default=None)


PROCEDURES: dict[str, Choice] = {
    "goen": lambda scores, wrong: select(scores, wrong, RATE, CONFIDENCE),
    "level not divided": undivided,
    "errors counted alone": without_guarantee,
}


def simulate(whole: Population, held_out: int, repetitions: int, seed: int) -> Iterator[Counted]:
    """Each procedure on the same draws."""
    score, uncertainty, wrong = whole
    rng = np.random.default_rng(seed)
    rank = threshold_rank(held_out, FALSE_ALARMS)
    tally = {name: [0, 0, 0.0] for name in PROCEDURES}
    for _ in range(repetitions):
        drawn = rng.integers(0, POPULATION, held_out)
        limit = np.sort(score[drawn])[-rank]
        below = drawn[score[drawn] < limit]
        passes = score < limit
        for name, choose in PROCEDURES.items():
            found = choose(uncertainty[below], wrong[below])
            if found is None:
                continue
            accepted = passes & (uncertainty < found.limit)
            count = int(accepted.sum())
            tally[name][0] += bool(count and wrong[accepted].mean() > RATE)
            tally[name][1] += 1
            tally[name][2] += count / POPULATION
    for name, (broken, accepted_any, coverage) in tally.items():
        low = beta.ppf(0.025, broken, repetitions - broken + 1) if broken else 0.0
        high = beta.ppf(0.975, broken + 1, repetitions - broken) if broken < repetitions else 1.0
        yield Counted(
            "", name, held_out, repetitions, int(broken), int(accepted_any),
            coverage / repetitions, float(low), float(high),
        )  # fmt: skip


def table(file: Path = OUT) -> Table:
    """The table of docs/error-rate.md."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    rows = [Counted(**line) for line in lines]
    by_draw: dict[tuple[str, int], dict[str, Counted]] = {}
    for row in rows:
        by_draw.setdefault((row.population, row.held_out), {})[row.procedure] = row
    body = []
    for (population, held_out), found in by_draw.items():
        shares = [
            Cell(one.broken / one.repetitions, ".2%", low=one.low, high=one.high)
            for one in (found[name] for name in PROCEDURES)
        ]
        coverages = [Cell(found[name].coverage, ".1%") for name in PROCEDURES]
        body.append(Row(f"{held_out:,} held-out images", (*shares, *coverages), population))
    columns = (*(f"{name}: above" for name in PROCEDURES), *(f"{n}: accepted" for n in PROCEDURES))
    title = (
        f"Share of {rows[0].repetitions:,} gates above the rate, and mean share of images accepted"
    )
    return Table("error-rate-simulation", title, columns, tuple(body))


def main(repetitions: int = 2000) -> None:
    """Simulate, print and write.

    Args:
        repetitions: of each row.
    """
    rows: list[Counted] = []
    for number, (name, whole) in enumerate(populations(np.random.default_rng(0))):
        for held_out in SIZES:
            for row in simulate(whole, held_out, repetitions, seed=100 * number + 1):
                rows.append(Counted(**{**asdict(row), "population": name}))
                share = row.broken / repetitions
                print(
                    f"{name:32} {row.procedure:22} {held_out:5}  broken {share:.4f} "
                    f"[{row.low:.4f}, {row.high:.4f}]  any {row.accepted_any / repetitions:.3f}  "
                    f"coverage {row.coverage:.3f}",
                    flush=True,
                )
    config = {"rate": RATE, "confidence": CONFIDENCE, "false_alarm_rate": FALSE_ALARMS}
    made = {"versions": versions(), "hardware": hardware(), "config": config}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    lines = [made, *map(asdict, rows)]
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
