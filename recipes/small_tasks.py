"""Which detector for a pretrained network? python recipes/small_tasks.py --features FEATURES

Small tasks on pretrained networks (recipes/small_tasks_features.py): of every set three quarters of
the classes are ID, drawn by the seed; a linear probe is fitted on their images; near-OOD are the
other classes of the same set, far-OOD the other sets. Every detector that reads features and logits
alone, goen-m on several layers, Mahalanobis distances with several ridges, and sums of cues.
Writes results/pretrained/small-tasks.jsonl, one line for each network, task and seed. What is there
already is not computed again: a detector that is new in goen is added to every line.
"""

import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from pretrained import OUT
from scipy.stats import rankdata
from small_tasks_features import MOST, NETWORKS, SETS, SIZE

from goen.detectors import DETECTORS, Detector, GoenM, Mahalanobis, RelativeMahalanobis
from goen.errors import FitError, GoenWarning
from goen.functional.cues import entropy
from goen.io.provenance import hardware, versions
from goen.metrics import ood_metrics, over_seeds
from goen.outputs import LinearClassifier, Outputs
from goen.report.table import Cell, Row, Table, marked
from goen.studies import SEEDS
from goen.training.probe import fit_logistic_regression

NAME = "small-tasks"
KEY = ("network", "task", "seed")
TASKS = tuple(known.partition("/")[0] for known in SETS)
# Networks pretrained with labels have seen these images at a higher resolution, or their relatives.
SEEN = {"tiny-imagenet": "its images and classes are of ImageNet"}
ID_CLASSES = 0.75
TRAIN, HELD_OUT = 0.6, 0.2  # of the ID images; the rest are test images
MOST_OOD = 250  # of a set
EVALUATED = ("held-out", "test")
USED_SEEDS = SEEDS[:1]
# These need more than features and logits, or take longer than all others (flow, masf).
LEFT_OUT = ("adascale", "adascale_l", "flow", "i_odin", "masf", "odin", "uncertainty")
GOEN_M = ("goen_m", "goen_m_last")  # which are there with their layers
DEFAULT, LAST = "goen_m", "goen_m: last layer"
RELATIVE = "relative Mahalanobis++, ridge 1"

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
Scores = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Method:
    """A detector, and what it is given.

    Attributes:
        make: the detector, which reads all layers or the last one.
        layers: numbers of those that were kept, see ``Source``.
        held_out: whether it is given held-out images.
    """

    make: Callable[[], Detector]
    layers: tuple[int, ...] = (0, -1)
    held_out: bool = True


_with_energy = partial(GoenM, logit_cues=("energy",))


def methods() -> dict[str, Method]:
    """By title. The layers of a network are (middle, early, late, later, last)."""
    found = {
        name: Method(make) for name, make in DETECTORS.items() if name not in (*LEFT_OUT, *GOEN_M)
    }
    found |= {
        DEFAULT: Method(GoenM),
        LAST: Method(GoenM, (-1,)),
        "goen_m: later and last layer": Method(GoenM, (-2, -1)),
        "goen_m: last layer, no held-out images": Method(GoenM, (-1,), held_out=False),
        "goen_m: late and last layer": Method(GoenM, (2, -1)),
        "goen_m: middle, later and last layer": Method(GoenM, (0, -2, -1)),
        "goen_m: later and last layer, energy": Method(_with_energy, (-2, -1)),
        "goen_m: all layers": Method(GoenM, (1, 0, 2, 3, -1)),
        "goen_m: last layer, energy": Method(_with_energy, (-1,)),
        "goen_m: last layer, no logits": Method(partial(GoenM, logit_cues=()), (-1,)),
        "Mahalanobis++, ridge 1": Method(partial(Mahalanobis, normalise=True, ridge=1.0)),
        RELATIVE: Method(partial(RelativeMahalanobis, normalise=True, ridge=1.0)),
    }
    return found


# Sums of scores that are standardised on the held-out images, each with the same weight.
SUMS = {
    "neighbours + entropy + relative": ("goen_m: last layer, no logits", "entropy", RELATIVE),
    "neighbours + energy + relative": ("goen_m: last layer, no logits", "energy", RELATIVE),
    "entropy + relative": ("entropy", RELATIVE),
    "energy + relative": ("energy", RELATIVE),
}


class Features:
    """Of a network: every set, read once."""

    def __init__(self, folder: Path) -> None:
        self.sets: dict[str, dict[str, NDArray[Any]]] = {}
        for name in TASKS:
            with np.load(folder / f"{name}.npz") as kept:
                self.sets[name] = {key: kept[key] for key in kept if key != "fingerprint"}

    def outputs(
        self, name: str, rows: Integers, layers: Sequence[str], classifier: LinearClassifier
    ) -> Outputs:
        found = {layer: torch.from_numpy(self.sets[name][layer][rows]) for layer in layers}
        return Outputs(classifier.logits(found[layers[-1]]), found, classifier=classifier)


@dataclass(frozen=True)
class Split:
    """Of one set: the rows that fit, calibrate and test, with labels; those of other classes."""

    train: Integers
    held_out: Integers
    test: Integers
    near: Integers
    number: Integers  # of each class of the set: its number among the ID classes, or -1


def split(labels: Integers, seed: int) -> Split:
    """Drawn by the seed."""
    rng = np.random.RandomState(seed)
    classes = rng.permutation(np.unique(labels))
    chosen = np.sort(classes[: round(ID_CLASSES * len(classes))])
    number = np.full(labels.max() + 1, -1)
    number[chosen] = np.arange(len(chosen))
    order = rng.permutation(len(labels))
    known = order[number[labels[order]] >= 0]
    # By class, so that each has training images.
    known = known[np.argsort(number[labels[known]], kind="stable")]
    counts = np.bincount(number[labels[known]])
    place = np.concatenate([(np.arange(n) + 0.5) / n for n in counts])
    return Split(
        known[place < TRAIN],
        known[(place >= TRAIN) & (place < TRAIN + HELD_OUT)],
        known[place >= TRAIN + HELD_OUT],
        order[number[labels[order]] < 0][:MOST_OOD],
        number,
    )


def standardised_sum(parts: Sequence[Scores]) -> dict[str, NDArray[np.float64]]:
    """The mean of scores, each standardised by its held-out images."""
    scaled = [
        {name: (s - part["held-out"].mean()) / part["held-out"].std() for name, s in part.items()}
        for part in parts
    ]
    return {name: np.mean([part[name] for part in scaled], axis=0) for name in scaled[0]}


class Task:
    """One network, one set and one seed: the probe, and the outputs of every part."""

    def __init__(self, features: Features, network: str, task: str, seed: int) -> None:
        self.features, self.task, self.layers = features, task, NETWORKS[network].layers
        own, last = features.sets[task], self.layers[-1]
        self.parts = parts = split(own["labels"], seed)
        rows = {"train": parts.train, "held-out": parts.held_out, "test": parts.test}
        self.truth = {part: parts.number[own["labels"][found]] for part, found in rows.items()}
        fitted = fit_logistic_regression(
            own[last][parts.train], self.truth["train"],
            own[last][parts.held_out], self.truth["held-out"],
        )  # fmt: skip
        self.classifier = LinearClassifier(fitted.weight.float(), fitted.bias.float(), last)
        self.places = {part: (task, found) for part, found in rows.items()} | {
            other: (other, self._some(other, seed)) for other in TASKS
        }
        self.logits = {name: outputs.logits for name, outputs in self.outputs((-1,)).items()}
        self.accuracy = float((self.logits["test"].argmax(1).numpy() == self.truth["test"]).mean())

    def _some(self, name: str, seed: int) -> Integers:
        """The OOD images of a set; of the task's own those of the other classes."""
        if name == self.task:
            return self.parts.near
        count = len(self.features.sets[name]["labels"])
        return np.random.RandomState(seed).permutation(count)[:MOST_OOD]

    def outputs(self, layers: Sequence[int]) -> dict[str, Outputs]:
        """Of every part and OOD set, with these layers; the last of them classifies."""
        names = [self.layers[number] for number in layers]
        return {
            part: self.features.outputs(of, rows, names, self.classifier)
            for part, (of, rows) in self.places.items()
        }

    def scores(self, method: Method) -> Scores:
        made = self.outputs(method.layers)
        train = made.pop("train")
        held_out = replace(made["held-out"], labels=torch.from_numpy(self.truth["held-out"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GoenWarning)
            detector = method.make().fit(
                train,
                torch.from_numpy(self.truth["train"]),
                held_out=held_out if method.held_out else None,
            )
        return {name: detector.score(outputs).double().numpy() for name, outputs in made.items()}

    def measure(self, known: Collection[str]) -> dict[str, list[float] | None]:
        """AUROC on near- and far-OOD of every method that is not known yet, if it can be fitted."""
        every = methods()
        sums = {title: names for title, names in SUMS.items() if title not in known}
        wanted = [title for title in every if title not in known]
        wanted += [name for names in sums.values() for name in names if name in every]
        scores, failed = {}, {}
        for title in dict.fromkeys(wanted):
            try:
                scores[title] = self.scores(every[title])
            except FitError as error:  # too few images for this method
                print(title, error)
                failed[title] = None
        of_logits = {name: entropy(self.logits[name]).numpy() for name in (*EVALUATED, *TASKS)}
        for title, names in sums.items():
            scores[title] = standardised_sum([{**scores, "entropy": of_logits}[n] for n in names])
        return {t: self._auroc(found) for t, found in scores.items() if t not in known} | failed

    def _auroc(self, scores: Scores) -> list[float]:
        """On the other classes of the set, and the mean over the other sets."""
        found = {name: ood_metrics(scores["test"], scores[name]).auroc for name in TASKS}
        far = fmean(value for name, value in found.items() if name != self.task)
        return [round(found[self.task], 4), round(far, 4)]

    def line(self) -> dict[str, Any]:
        """What is said of it beside the measurements."""
        return {
            "classes": int(self.parts.number.max()) + 1, "train": len(self.parts.train),
            "test": len(self.parts.test), "near": len(self.parts.near),
            "accuracy": round(self.accuracy, 4),
        }  # fmt: skip


def main(features: Path, out: Path = OUT, only: tuple[str, ...] = ()) -> None:
    """Measure what is not measured yet.

    Args:
        features: the folder of small_tasks_features.py.
        out: where small-tasks.jsonl is.
        only: networks; all that are complete without it.
    """
    torch.set_num_threads(1)
    path = out / f"{NAME}.jsonl"
    lines = {_key(line): line for line in (read(path) if path.is_file() else [])}
    made = {"versions": versions(), "hardware": hardware(),
            "config": {"size": SIZE, "images": MOST, "seeds": USED_SEEDS}}  # fmt: skip
    every = {*methods(), *SUMS}
    for seed, network in product(USED_SEEDS, only or NETWORKS):
        if not all((features / network / f"{task}.npz").is_file() for task in TASKS):
            continue
        values = Features(features / network)
        for task in TASKS:
            key = (network, task, seed)
            line = lines.setdefault(key, dict(zip(KEY, key, strict=True)))
            known = line.get("auroc", {})
            if every <= known.keys():
                continue
            found = Task(values, network, task, seed)
            line |= found.line()
            line["auroc"] = {**known, **found.measure(known)}
            text = "".join(json.dumps(entry) + "\n" for entry in [made, *lines.values()])
            path.write_text(text, encoding="utf-8")
            print(*key, line["accuracy"], flush=True)


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in KEY)


def read(path: Path = OUT / f"{NAME}.jsonl") -> list[dict[str, Any]]:
    """The lines that were measured."""
    text = path.read_text(encoding="utf-8")
    return [line for line in map(json.loads, text.splitlines()) if "network" in line]


# -- tables ----------------------------------------------------------------------------------------

Pairs = dict[tuple[str, str], dict[str, tuple[float, float]]]


def by_pair(lines: Sequence[Mapping[str, Any]]) -> Pairs:
    """By network and task: AUROC of each method on near- and far-OOD, the mean over seeds."""
    found: Pairs = {}
    titles = [
        title for title in (*methods(), *SUMS) if all(line["auroc"].get(title) for line in lines)
    ]
    for key in dict.fromkeys((line["network"], line["task"]) for line in lines):
        same = [line["auroc"] for line in lines if (line["network"], line["task"]) == key]
        found[key] = {
            t: (fmean(line[t][0] for line in same), fmean(line[t][1] for line in same))
            for t in titles
        }
    return found


def ranks(pairs: Pairs) -> dict[str, float]:
    """The mean rank of each method, 1 is best, over networks, tasks and both kinds of OOD."""
    titles = list(next(iter(pairs.values())))
    found = [
        rankdata([-values[title][kind] for title in titles])
        for values in pairs.values()
        for kind in (0, 1)
    ]
    return dict(zip(titles, np.mean(found, axis=0).tolist(), strict=True))


def over_tasks(pairs: Pairs, of: Callable[[dict[str, tuple[float, float]]], float]) -> list[float]:
    """One number for each task: the mean over networks."""
    tasks = dict.fromkeys(task for _, task in pairs)
    return [fmean(of(v) for (_, task), v in pairs.items() if task == one) for one in tasks]


def difference(pairs: Pairs, title: str, against: str) -> list[float]:
    """Of the mean AUROC of both kinds, for each task."""
    return over_tasks(pairs, lambda v: fmean(v[title]) - fmean(v[against]))


def methods_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """Every method: its mean rank, its AUROC, and how far it is from the default pair."""
    pairs = by_pair(lines)
    rank = ranks(pairs)
    rows = []
    for title in sorted(rank, key=lambda t: rank[t]):
        near, far = (over_tasks(pairs, lambda v, t=title, k=k: v[t][k]) for k in (0, 1))
        gain = over_seeds(difference(pairs, title, DEFAULT))
        last = Cell(text="–")
        if title != DEFAULT:
            last = Cell(gain.mean, "+.3f", low=gain.low, high=gain.high)
        cells = (
            Cell(rank[title], ".1f"), Cell(fmean(near), ".3f"), Cell(fmean(far), ".3f"),
            Cell(fmean([*near, *far]), ".3f"), last,
        )  # fmt: skip
        rows.append(cells)
    titles = sorted(rank, key=lambda t: rank[t])
    columns = [
        marked(list(c), higher_is_better=i > 0) for i, c in enumerate(zip(*rows, strict=True))
    ]
    marks = [*columns[:4], [replace(cell, mark="") for cell in columns[4]]]
    whole = tuple(
        Row(LABELS.get(t, t), tuple(c))
        for t, c in zip(titles, zip(*marks, strict=True), strict=True)
    )
    networks, tasks = (list(dict.fromkeys(key[i] for key in pairs)) for i in (0, 1))
    unfit = [t for t in lines[0]["auroc"] if any(line["auroc"].get(t, 0) is None for line in lines)]
    notes = (
        f"{len(networks)} networks, {len(tasks)} tasks, seed {', '.join(map(str, USED_SEEDS))}. "
        f"Rank among {len(rank)} methods, over networks, tasks and both kinds of OOD. The last "
        "column: difference of the mean AUROC from goen-m on the middle and the last layer, with "
        "the 95 % interval over tasks (t, mean over networks). Sums are of standardised scores; "
        "neighbours are goen-m's distance in the last layer.",
        f"Left out: {', '.join(LEFT_OUT)}, which need more than features and logits or take longer "
        "than all others"
        + (
            f"; {' and '.join(unfit)}, which cannot be fitted on the fewest images."
            if unfit
            else "."
        ),
    )
    return Table(
        NAME, "Small tasks on pretrained networks: mean rank and mean AUROC",
        ("mean rank", "near-OOD", "far-OOD", "mean", "against two layers"), whole, notes,
    )  # fmt: skip


LABELS = {DEFAULT: "goen_m: middle and last layer"}
# Of the tables by task and by network.
SHOWN = (DEFAULT, LAST, "Mahalanobis++, ridge 1", "max_softmax")


def part_table(lines: Sequence[Mapping[str, Any]], key: str) -> Table:
    """By task or by network: the accuracy of the probe, and AUROC of some methods."""
    pairs = by_pair(lines)
    place = KEY.index(key)
    rows = []
    for one in dict.fromkeys(pair[place] for pair in pairs):
        same = [line for line in lines if line[key] == one]
        values = [v for pair, v in pairs.items() if pair[place] == one]
        cells = [Cell(fmean(line["accuracy"] for line in same), ".1%")]
        if key == "task":
            numbers = (
                fmean(line[name] for line in same if line["network"] == same[0]["network"])
                for name in ("classes", "train")
            )
            cells = [*(Cell(number, ".0f") for number in numbers), *cells]
        for title in SHOWN:
            cells += [Cell(fmean(v[title][kind] for v in values), ".3f") for kind in (0, 1)]
        rows.append(Row(one, tuple(cells)))
    names = [f"{LABELS.get(title, title)}; {kind}" for title in SHOWN for kind in ("near", "far")]
    head = ("ID classes", "training images", "accuracy") if key == "task" else ("accuracy",)
    title = f"The same by {key}, AUROC, mean over {'networks' if key == 'task' else 'tasks'}"
    return Table(f"{NAME}-by-{key}", title, (*head, *names), tuple(rows))


def tables() -> dict[str, Table]:
    """The tables of docs/pretrained.md that this recipe makes."""
    lines = read()
    found = (methods_table(lines), part_table(lines, "task"), part_table(lines, "network"))
    return {table.name: table for table in found}


if __name__ == "__main__":
    tyro.cli(main)
