"""Few images, many classes: python recipes/few_images.py --data-dir DATA

CIFAR-100's test images in the features of a pretrained network (recipes/pretrained_features.py):
fifty classes are ID, the other fifty OOD, drawn by the seed. From 1 to 50 training images per
class, unequal numbers, classes without any, features of 80 to 2,048 numbers. Compares goen-m's
distance with other neighbours, class means and Mahalanobis distances, and the gate's false alarms.
Writes results/pretrained/few-images.jsonl.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from paired import read_lines
from pretrained import OUT, linear_probe
from pretrained_features import LAST, MIDDLE, SIZE, image_sets, pretrained
from torch import Tensor

from goen.detectors import Mahalanobis, RelativeMahalanobis
from goen.detectors._bank import Bank
from goen.detectors._gaussians import mean_variance
from goen.errors import FitError
from goen.functional.covariance import ledoit_wolf_shrinkage, oas_shrinkage, tied_covariance
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import whitener
from goen.gate import Gate
from goen.io.provenance import hardware, versions
from goen.metrics import ood_metrics, over_seeds
from goen.outputs import Outputs
from goen.report.table import Cell, Row, Table
from goen.studies import SEEDS

NAME = "few-images"
CLASSES = 50
# Of the 100 images of a class: at most so many to train, then held-out and test images.
MOST, HELD_OUT = 50, 25
WITHOUT = 10  # classes without any training image
WIDE = 2048
# What a bank of 5,000 rows keeps of each of 1,000 classes.
FEW_ROWS = 5
COUNTS = (1, 2, 5, 10, 50)
KTH = (1, 2, 3, 5, 10)
GOEN_M = "goen-m"

Integers = NDArray[np.int64]
Rows = NDArray[np.float32]
Distance = Callable[[Rows], Tensor]

# Of the features other than the last layer's: these, in these settings, with these seeds.
BY_WIDTH = (GOEN_M, "class mean", "Mahalanobis, OAS", "relative, ridge 1e-06")
WIDTH_SEEDS = SEEDS[:3]
WIDTH_SETTINGS = ("1 per class", "5 per class", "50 per class", "1 to 50")


@dataclass(frozen=True)
class Line:
    """One number of one method in one setting.

    Attributes:
        setting: how many training images the classes have.
        feature: of the pretrained network.
        width: of the feature.
        method: what measures.
        seed: draws classes and images.
        metric: ``auroc`` of the distance, against OOD images; ``flagged`` (OOD images), ``alarms``
            (ID test images), ``without`` (images of classes without training images): shares at a
            false-alarm rate of 5 %; ``accuracy`` of the probe.
        value: the number.
        low: lower end of its 95 % interval over images, of an AUROC.
        high: upper end.
    """

    setting: str
    feature: str
    width: int
    method: str
    seed: int
    metric: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Problem:
    """The rows of each role and the class numbers of those that have a class."""

    train: Integers
    labels: Integers
    held_out: Integers
    held_out_labels: Integers
    test: Integers
    test_labels: Integers
    without: Integers
    ood: Integers


def settings() -> dict[str, Callable[[np.random.RandomState], Integers]]:
    """By name: the number of training images of each ID class."""

    def unequal(_: np.random.RandomState) -> Integers:
        return np.geomspace(1, MOST, CLASSES).round().astype(np.int64)

    def extreme(_: np.random.RandomState) -> Integers:
        return np.where(np.arange(CLASSES) < CLASSES - 5, 1, MOST)

    def gaps(rng: np.random.RandomState) -> Integers:
        counts = unequal(rng)
        counts[rng.permutation(CLASSES)[:WITHOUT]] = 0
        return counts

    equal = {f"{n} per class": lambda _, n=n: np.full(CLASSES, n) for n in COUNTS}
    return {
        **equal,
        "1 to 50": unequal,
        "1, but five classes 50": extreme,
        "1 to 50, ten classes none": gaps,
    }


def draw(labels: Integers, counts: Integers, rng: np.random.RandomState) -> Problem:
    """A random half of the classes is ID, with so many training images each."""
    classes = rng.permutation(2 * CLASSES)
    parts: dict[str, list[Integers]] = {"train": [], "held_out": [], "test": [], "without": []}
    numbers: dict[str, list[Integers]] = {"train": [], "held_out": [], "test": []}
    for number, (name, count) in enumerate(zip(classes[:CLASSES], counts, strict=True)):
        rows = rng.permutation(np.flatnonzero(labels == name))
        cut = {
            "train": rows[:count],
            "held_out": rows[MOST : MOST + HELD_OUT],
            "test": rows[MOST + HELD_OUT :],
        }
        if not count:  # nothing is known of it: its images are neither held out nor ID
            parts["without"].append(cut["test"])
            continue
        for role, some in cut.items():
            parts[role].append(some)
            numbers[role].append(np.full(len(some), number))
    joined = {role: np.concatenate(rows or [np.zeros(0, int)]) for role, rows in parts.items()}
    truth = {role: np.concatenate(rows) for role, rows in numbers.items()}
    ood = [rng.permutation(np.flatnonzero(labels == c))[:HELD_OUT] for c in classes[CLASSES:]]
    return Problem(
        joined["train"], truth["train"], joined["held_out"], truth["held_out"],
        joined["test"], truth["test"], joined["without"], np.concatenate(ood),
    )  # fmt: skip


# -- distances -------------------------------------------------------------------------------


def _outputs(rows: Rows) -> Outputs:
    return Outputs(torch.zeros(len(rows), CLASSES), {"x": torch.from_numpy(rows)})


def distances(train: Rows, labels: Integers) -> dict[str, Callable[[], Distance]]:
    """By name: what fits a distance. Fitting is a ``FitError`` where it cannot be done."""
    outputs, numbers = _outputs(train), torch.from_numpy(labels)
    bank = Bank(["x"]).update(outputs, numbers)
    small = Bank(["x"], FEW_ROWS * CLASSES).update(outputs, numbers)
    unit = normalise(torch.from_numpy(train).double())
    means = torch.stack([unit[numbers == c].mean(dim=0) for c in numbers.unique()])

    def nearest(rows: Rows) -> Tensor:
        return bank.nearest(_outputs(rows), "x", max(KTH)).distances

    def few(rows: Rows) -> Tensor:
        return small.distance(_outputs(rows), "x")

    def tied(shrinkage: str) -> Distance:
        fitted = normalise(torch.from_numpy(train))
        statistics = ClassStatistics(CLASSES, fitted.shape[1]).update(fitted, numbers)
        if shrinkage == "oas":
            share = oas_shrinkage(statistics)
        else:
            share = ledoit_wolf_shrinkage(statistics, [(fitted, numbers)])
        cov = tied_covariance(statistics, 1e-6 * mean_variance(statistics), shrinkage=share)
        whitening = whitener(statistics.means_, cov)
        return lambda rows: whitening.nearest(normalise(torch.from_numpy(rows))).distance

    def detector(kind: type[Mahalanobis | RelativeMahalanobis], ridge: float) -> Distance:
        fitted = kind(normalise=True, ridge=ridge).fit(outputs, numbers)
        return lambda rows: fitted.score(_outputs(rows))

    kth = {f"neighbour {k}": lambda k=k: lambda rows: nearest(rows)[:, k - 1] for k in KTH}
    return {
        GOEN_M: lambda: lambda rows: bank.distance(_outputs(rows), "x"),
        f"goen-m, {FEW_ROWS} rows of a class": lambda: few,
        **kth,
        "mean of 5 neighbours": lambda: lambda rows: nearest(rows)[:, :5].mean(dim=1),
        "class mean": lambda: lambda rows: _to_nearest(rows, means),
        "class mean, unit length": lambda: lambda rows: _to_nearest(rows, normalise(means)),
        "Mahalanobis, OAS": lambda: tied("oas"),
        "Mahalanobis, Ledoit-Wolf": lambda: tied("ledoit_wolf"),
        "Mahalanobis, ridge 1e-06": lambda: detector(Mahalanobis, 1e-6),
        "relative, ridge 1e-06": lambda: detector(RelativeMahalanobis, 1e-6),
        "relative, ridge 1": lambda: detector(RelativeMahalanobis, 1.0),
    }


def _to_nearest(rows: Rows, means: Tensor) -> Tensor:
    return torch.cdist(normalise(torch.from_numpy(rows).double()), means).amin(dim=1)


def compared(
    features: Mapping[str, Rows], labels: Integers, setting: str, seed: int
) -> Iterator[Line]:
    """Every method of one setting and seed."""
    rng = np.random.RandomState(seed)
    p = draw(labels, settings()[setting](rng), rng)
    for name, rows in features.items():
        about = (setting, name, rows.shape[1])
        if name != LAST and (setting not in WIDTH_SETTINGS or seed not in WIDTH_SEEDS):
            continue
        for method, fit in distances(rows[p.train], p.labels).items():
            if name != LAST and method not in BY_WIDTH:
                continue
            try:
                distance = fit()
            except FitError:  # one image per class has no covariance
                continue
            known, other = (distance(rows[part]).numpy() for part in (p.test, p.ood))
            m = ood_metrics(known, other)
            yield Line(*about, method, seed, "auroc", m.auroc, m.auroc_low, m.auroc_high)
            if method == GOEN_M and len(p.without):
                m = ood_metrics(known, distance(rows[p.without]).numpy())
                yield Line(
                    *about, method, seed, "auroc without", m.auroc, m.auroc_low, m.auroc_high
                )
    yield from gate_lines(features, p, setting, seed)


def gate_lines(features: Mapping[str, Rows], p: Problem, setting: str, seed: int) -> Iterator[Line]:
    """A gate on two layers and a probe that knows all classes, some of them without an image."""
    known, columns = np.unique(p.labels), CLASSES
    probe = linear_probe(features[LAST][p.train], p.labels)

    def of(rows: Integers) -> dict[str, Rows]:
        found = probe(torch.from_numpy(features[LAST][rows])).numpy()
        logits = np.full((len(rows), columns), found.min() - 10, np.float32)
        logits[:, known] = found
        return {name: features[name][rows] for name in (MIDDLE, LAST)} | {"logits": logits}

    gate = Gate.fit_outputs(
        of(p.train), p.labels, of(p.held_out), held_out_labels=p.held_out_labels
    )
    test, ood = gate.predict_outputs(of(p.test)), gate.predict_outputs(of(p.ood))
    m = ood_metrics(test.score, ood.score)
    about = (setting, f"{MIDDLE}, {LAST}", 0, "gate", seed)
    yield Line(*about, "auroc", m.auroc, m.auroc_low, m.auroc_high)
    yield Line(*about, "accuracy", float((test.label == p.test_labels).mean()))
    yield Line(*about, "alarms", float(test.is_ood.mean()))
    yield Line(*about, "flagged", float(ood.is_ood.mean()))
    if len(p.without):
        yield Line(*about, "without", float(gate.predict_outputs(of(p.without)).is_ood.mean()))


# -- the tables ------------------------------------------------------------------------------


def _cell(found: Sequence[Line], form: str = ".3f") -> Cell:
    if not found:
        return Cell(text="–")
    values = [line.value for line in found]
    return Cell(fmean(values), form, spread=over_seeds(values).sd)


def tables() -> dict[str, Table]:
    """The tables on few images."""
    lines = [Line(**line) for line in read_lines(OUT / f"{NAME}.jsonl") if "setting" in line]
    asked = [*settings()]
    seeds = sorted({line.seed for line in lines})
    methods = dict.fromkeys(x.method for x in lines if x.feature == LAST and x.metric == "auroc")

    def some(**wanted: object) -> list[Line]:
        return [x for x in lines if all(getattr(x, k) == v for k, v in wanted.items())]

    rows = [
        Row(m, tuple(_cell(some(setting=s, feature=LAST, method=m, metric="auroc")) for s in asked))
        for m in methods
    ]
    notes = (
        f"Mean ± standard deviation over {len(seeds)} seeds, which draw classes and images; the "
        "distance alone, without entropy. –: cannot be fitted.",
    )
    title = "AUROC of distances, fifty classes of CIFAR-100 against fifty others, width 1,280"
    by_method = Table(NAME, title, tuple(asked), tuple(rows), notes)
    widths = sorted({(x.width, x.feature) for x in lines if x.width})

    def by_feature(setting: str, method: str) -> tuple[Cell, ...]:
        about = {"setting": setting, "method": method, "metric": "auroc"}
        return tuple(_cell(some(feature=f, **about)) for _, f in widths)

    rows = [Row(m, by_feature(s, m), s) for s in WIDTH_SETTINGS for m in BY_WIDTH]
    columns = tuple(f"{f} ({w:,})" for w, f in widths)
    by_width = Table(f"{NAME}-width", "AUROC by feature and width", columns, tuple(rows))
    metrics = {
        "AUROC": "auroc", "accuracy of the probe": "accuracy", "false alarms": "alarms",
        "OOD images flagged": "flagged", "of classes without images flagged": "without",
    }  # fmt: skip
    rows = [
        Row(title, tuple(
            _cell(some(setting=s, method="gate", metric=m), ".3f" if m == "auroc" else ".1%")
            for s in asked
        ))
        for title, m in metrics.items()
    ]  # fmt: skip
    title = "The gate (two layers and the probe's entropy) at a false-alarm rate of 5 %"
    of_gate = Table(f"{NAME}-gate", title, tuple(asked), tuple(rows))
    return {table.name: table for table in (by_method, by_width, of_gate)}


def main(data_dir: Path | None = None, size: int = SIZE, runs: Path = Path("runs")) -> None:
    """Draw, fit, measure and write.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        size: to which the images of 32 pixels are enlarged; a multiple of 32.
        runs: where features are kept.
    """
    torch.set_num_threads(1)
    sets, frozen = image_sets(data_dir), pretrained(size, runs)
    if "cifar100" not in sets:
        raise SystemExit(
            "This study needs CIFAR-100's test images: goen data list says where from."
        )
    halves = [
        (sets[name], frozen.features(name, sets[name])) for name in ("cifar100", "cifar100-rest")
    ]
    labels = np.concatenate([half.labels + CLASSES * i for i, (half, _) in enumerate(halves)])
    features = {
        name: np.concatenate([found[name] for _, found in halves])
        for name in (MIDDLE, "_blocks.15", LAST)
    }
    projection = np.random.RandomState(0).normal(size=(features[LAST].shape[1], WIDE))
    features["random projection"] = (features[LAST] @ projection / WIDE**0.5).astype("f4")
    lines = []
    for setting in settings():
        for seed in SEEDS:
            lines += compared(features, labels, setting, seed)
        for x in lines:
            if (
                x.setting == setting
                and x.seed == SEEDS[0]
                and x.feature in (LAST, f"{MIDDLE}, {LAST}")
            ):
                print(f"{x.setting:28} {x.method:28} {x.metric:9} {x.value:.4f}", flush=True)
    config = {"size": size, "seeds": SEEDS, "features": [*features]}
    made = {"versions": versions(), "hardware": hardware(), "config": config}
    OUT.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(entry) + "\n" for entry in [made, *map(asdict, lines)])
    (OUT / f"{NAME}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
