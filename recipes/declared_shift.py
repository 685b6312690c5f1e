"""False alarms under a declared shift: python recipes/declared_shift.py --data-dir DATA

Simulation: a property x, normal scores that rise with x, and new images whose x (or whose mix of
classes) is another one; with true and with estimated weights, with and without ties. Real images:
CIFAR-10's test images through the bundled gate cifar10-w16, divided at random into held-out images,
a sample of the deployment and new images, where the deployment prefers dark images, images of
little contrast or two classes; and where images are darkened afterwards, which is no shift of this
kind. Needs recipes/monitor_properties.py to have scored the images. Writes
results/gates/shift.jsonl and docs/pictures/shift.png.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
from matplotlib import pyplot as plt
from monitor_cifar10 import Floats, Scores
from monitor_properties import CHANGED, TESTED, scored, with_properties
from numpy.typing import NDArray
from paired import read_lines

import goen
from goen.data import protocol
from goen.errors import FitError
from goen.functional.conformal import p_values
from goen.functional.weighted_conformal import weighted_p_values
from goen.gate import DeclaredShift
from goen.io.provenance import hardware, versions
from goen.io.stages import Stages
from goen.monitor.inputs import SCORE, property_stream
from goen.report.table import Cell, Row, Table

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "gates" / "shift.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "shift.png"
RATE = 0.05
NEW = 40  # new images of each repetition

Flags = tuple[NDArray[np.bool_], NDArray[np.bool_], float]  # plain, weighted, effective size


@dataclass(frozen=True)
class Line:
    """One setting.

    Attributes:
        study: simulation or CIFAR-10.
        what: the shift, and where the weights come from.
        held_out: images.
        sample: of the deployment; 0 where none is needed.
        repetitions: that were not refused.
        refused: repetitions in which too few held-out images were left in effect.
        plain: share of new ID images flagged without weights.
        weighted: with weights.
        error: of the latter, its standard error over repetitions.
        effective: mean effective number of held-out images.
        ood_plain: share of SVHN flagged without weights, of real images.
        ood_weighted: with weights.
    """

    study: str
    what: str
    held_out: int
    sample: int
    repetitions: int
    refused: int
    plain: float
    weighted: float
    error: float
    effective: float
    ood_plain: float | None = None
    ood_weighted: float | None = None


def repeated(
    study: str, what: str, sizes: tuple[int, int], count: int, run: Callable[[int], list[Flags]]
) -> Line:
    """The mean of all repetitions; the second result of a run is that of OOD images."""
    found, refused = [], 0
    for seed in range(count):
        try:
            found.append([(f[0].mean(), f[1].mean(), f[2]) for f in run(seed)])
        except FitError:
            refused += 1
    values = np.array(found)
    mean = values.mean(axis=0)
    line = Line(
        study=study,
        what=what,
        held_out=sizes[0],
        sample=sizes[1],
        repetitions=len(found),
        refused=refused,
        plain=mean[0, 0],
        weighted=mean[0, 1],
        error=float(values[:, 0, 1].std(ddof=1) / np.sqrt(len(found))),
        effective=mean[0, 2],
        ood_plain=mean[1, 0] if len(mean) > 1 else None,
        ood_weighted=mean[1, 1] if len(mean) > 1 else None,
    )
    print(line, flush=True)
    return line


def simulated(repetitions: int) -> Iterator[Line]:
    """Normal scores; x of new images is higher by 0.7."""

    def draw(
        rng: np.random.Generator, count: int, mean: float, digits: int
    ) -> tuple[Floats, Floats]:
        x = rng.normal(mean, 1, count)
        return x, (x + rng.normal(size=count)).round(digits)

    def true(n: int, digits: int) -> Callable[[int], list[Flags]]:
        def run(seed: int) -> list[Flags]:
            rng = np.random.default_rng([1, n, digits, seed])
            (x, held_out), (y, new) = draw(rng, n, 0, digits), draw(rng, NEW, 0.7, digits)
            weights = np.exp(0.7 * x)
            p = weighted_p_values(new, np.exp(0.7 * y), held_out, weights)
            size = weights.sum() ** 2 / (weights**2).sum()
            return [(p_values(new, held_out) <= RATE, p <= RATE, float(size))]

        return run

    def estimated(n: int, m: int) -> Callable[[int], list[Flags]]:
        def run(seed: int) -> list[Flags]:
            rng = np.random.default_rng([2, n, m, seed])
            (x, held_out), (y, new) = draw(rng, n, 0, 9), draw(rng, NEW, 0.7, 9)
            shift = DeclaredShift.from_table(held_out, x, rng.normal(0.7, 1, m), RATE)
            flags = shift.p_values(new, y) <= RATE
            return [(p_values(new, held_out) <= RATE, flags, shift.effective_size)]

        return run

    def classes(n: int) -> Callable[[int], list[Flags]]:
        shares = np.array([0.2, 0.2, 0.6])

        def run(seed: int) -> list[Flags]:
            rng = np.random.default_rng([3, n, seed])
            truth, other = rng.integers(0, 3, n), rng.choice(3, NEW, p=shares)
            held_out, new = truth + rng.normal(size=n), other + rng.normal(size=NEW)
            shift = DeclaredShift.from_classes(held_out, truth, shares.tolist(), RATE)
            flags = shift.p_values(new) <= RATE
            return [(p_values(new, held_out) <= RATE, flags, shift.effective_size)]

        return run

    for digits, ties in ((9, ""), (0, ", ties")):
        for n in (100, 500):
            what = f"property, true weights{ties}"
            yield repeated("simulation", what, (n, 0), repetitions, true(n, digits))
    for n, m in ((500, 100), (500, 500), (2000, 500)):
        what = "property, estimated weights"
        yield repeated("simulation", what, (n, m), repetitions, estimated(n, m))
    for n in (200, 1000):
        yield repeated("simulation", "mix of classes", (n, 0), repetitions, classes(n))


def chosen(rng: np.random.Generator, rows: NDArray[np.int64], weights: Floats, n: int) -> Floats:
    """``n`` of the rows, drawn with these weights, no one twice."""
    return rows[np.argsort(rng.exponential(size=len(rows)) / weights[rows])[:n]]


def real(
    test: Scores, dark: Scores, svhn: Scores, truth: NDArray[np.int64], repetitions: int
) -> Iterator[Line]:
    """CIFAR-10's test images, 1,000 held-out ones and a sample of 300."""
    n, m, new = 1000, 300, 200
    rows = np.arange(len(truth))

    def by_property(
        name: str, slope: float, darkened: bool = False
    ) -> Callable[[int], list[Flags]]:
        stream = property_stream(name)

        def run(seed: int) -> list[Flags]:
            rng = np.random.default_rng([4, seed, len(name)])
            order = rng.permutation(rows[: TESTED - CHANGED] if darkened else rows)
            held_out, others = order[:n], order[n:]
            source = dark if darkened else test
            if darkened:
                deployed = rng.permutation(CHANGED)[: m + new]
            else:
                deployed = chosen(rng, others, np.exp(slope * test[stream]), m + new)
                deployed = rng.permutation(deployed)
            sample, fresh = deployed[:m], deployed[m:]
            scores = test[SCORE][held_out]
            shift = DeclaredShift.from_table(
                scores, test[stream][held_out], source[stream][sample], RATE
            )
            return [
                (
                    p_values(part[SCORE][at], scores) <= RATE,
                    shift.p_values(part[SCORE][at], part[stream][at]) <= RATE,
                    shift.effective_size,
                )
                for part, at in ((source, fresh), (svhn, slice(None)))
            ]

        return run

    def by_class(seed: int) -> list[Flags]:
        rng = np.random.default_rng([5, seed])
        shares = np.full(10, 0.3 / 8)
        shares[[3, 5]] = 0.35  # cats and dogs
        order = rng.permutation(rows)
        held_out, others = order[:n], order[n:]
        fresh = chosen(rng, others, shares[truth], new)
        scores = test[SCORE][held_out]
        shift = DeclaredShift.from_classes(scores, truth[held_out], shares.tolist(), RATE)
        return [
            (p_values(s, scores) <= RATE, shift.p_values(s) <= RATE, shift.effective_size)
            for s in (test[SCORE][fresh], svhn[SCORE])
        ]

    for name, slope in (("brightness", -8.0), ("brightness", 8.0), ("contrast", -16.0)):
        less = {"brightness": "darker", "contrast": "of less contrast"}[name]
        what = f"images {less if slope < 0 else 'brighter'} by choice"
        yield repeated("CIFAR-10", what, (n, m), repetitions, by_property(name, slope))
    yield repeated("CIFAR-10", "70 % cats and dogs", (n, 0), repetitions, by_class)
    what = "images darkened by 0.2"
    yield repeated("CIFAR-10", what, (n, m), repetitions, by_property("brightness", 0, True))


def tables(file: Path = OUT) -> dict[str, Table]:
    """The table of docs/guarantee.md."""
    found = [Line(**entry) for entry in read_lines(file) if "study" in entry]

    def share(value: float | None) -> Cell:
        return Cell(text="–") if value is None else Cell(value, ".1%")

    rows = []
    for one in found:
        sample = f", a sample of {one.sample}" if one.sample else ""
        refused = f"; {one.refused} refused" if one.refused else ""
        rows.append(
            Row(
                f"{one.what}: {one.held_out:,} held out{sample}{refused}",
                (
                    share(one.plain),
                    Cell(text=f"{one.weighted:.1%} ± {2 * one.error:.1%}"),
                    Cell(one.effective, ".0f"),
                    share(one.ood_plain),
                    share(one.ood_weighted),
                ),
                one.study,
            )
        )
    columns = (
        "ID flagged without weights", "with weights", "held-out images in effect",
        "SVHN flagged without", "with",
    )  # fmt: skip
    most = max(one.repetitions + one.refused for one in found)
    notes = (
        f"False-alarm rate {RATE:g}; {most:,} repetitions of each row, ± two standard errors over "
        "repetitions.",
    )
    table = Table("shift", "False alarms under a declared shift", columns, tuple(rows), notes)
    return {table.name: table}


def draw_picture(lines: list[Line]) -> None:
    """Share of ID images flagged, without weights and with them."""
    figure, axes = plt.subplots(figsize=(7.2, 0.32 * len(lines) + 1), layout="constrained")
    names = [f"{one.what}, n = {one.held_out:,}" + (f", m = {one.sample}" if one.sample else "")
             for one in lines]  # fmt: skip
    places = np.arange(len(lines))[::-1]
    axes.axvline(100 * RATE, color="#333333", linewidth=1)
    plain, weighted = (
        [100 * getattr(one, name) for one in lines] for name in ("plain", "weighted")
    )
    axes.plot(plain, places, "o", color="#999999", label="without weights")
    errors = [200 * one.error for one in lines]
    axes.errorbar(weighted, places, xerr=errors, fmt="o", color="#0072b2", label="with weights")
    axes.set_yticks(places, names, fontsize=8)
    axes.set(xlabel="ID images flagged, % (promised: 5)", xlim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, dpi=110)


def main(
    data_dir: Path | None = None, repetitions: int = 1000, stages: Path = Path("runs/stages")
) -> None:
    """Simulate, score, compare and write.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        repetitions: of each row.
        stages: where finished work is kept.
    """
    lines = list(simulated(repetitions))
    p = protocol("cifar10", data_dir=data_dir, download=True)
    kept = Stages(stages)
    gate = with_properties(goen.load("cifar10-w16"), p.held_out.take(range(100)))
    test = p.test.take(np.arange(len(p.test) - TESTED, len(p.test)))
    last = test.take(np.arange(TESTED - CHANGED, TESTED))
    dark = goen.data.ImageSet(
        "0.8-of-the-brightness",
        (0.8 * last.read()).round().clip(0, 255).astype(np.uint8),
        last.labels,
        last.classes,
    )
    svhn = p.evaluation["svhn"].images.take(np.arange(600))
    found = [scored(gate, images, kept) for images in (test, dark, svhn)]
    lines += real(found[0], found[1], found[2], test.labels, repetitions)
    draw_picture(lines)
    made = {"versions": versions(), "hardware": hardware(), "config": {"repetitions": repetitions}}
    text = "".join(json.dumps(entry) + "\n" for entry in [made, *map(asdict, lines)])
    OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
