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
from small_tasks_features import MOST, NETWORKS, SETS, SIZE

from goen.detectors import DETECTORS, Detector, GoenM, Mahalanobis, RelativeMahalanobis
from goen.errors import GoenWarning
from goen.functional.cues import entropy
from goen.io.provenance import hardware, versions
from goen.metrics import ood_metrics
from goen.outputs import LinearClassifier, Outputs
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
USED_SEEDS = SEEDS[:2]
# These read the network or a head of it (odin, uncertainty), or are trained for minutes (flow).
LEFT_OUT = ("flow", "goen_m", "odin", "uncertainty")
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


def methods() -> dict[str, Method]:
    """By title. The layers of a network are (middle, early, late, later, last)."""
    found = {name: Method(make) for name, make in DETECTORS.items() if name not in LEFT_OUT}
    found |= {
        DEFAULT: Method(GoenM),
        LAST: Method(GoenM, (-1,)),
        "goen_m: later and last layer": Method(GoenM, (-2, -1)),
        "goen_m: last layer, no held-out images": Method(GoenM, (-1,), held_out=False),
        "goen_m: all layers": Method(GoenM, (1, 0, 2, 3, -1)),
        "goen_m: last layer, energy": Method(partial(GoenM, logit_cues=("energy",)), (-1,)),
        "goen_m: last layer, no logits": Method(partial(GoenM, logit_cues=()), (-1,)),
        "Mahalanobis++, ridge 1": Method(partial(Mahalanobis, normalise=True, ridge=1.0)),
    }
    for ridge in (0.1, 1.0, 10.0):
        make = partial(RelativeMahalanobis, normalise=True, ridge=ridge)
        found[f"relative Mahalanobis++, ridge {ridge:g}"] = Method(make)
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

    def measure(self, known: Collection[str]) -> dict[str, list[float]]:
        """AUROC on near- and far-OOD of every method that is not known yet."""
        every = methods()
        sums = {title: names for title, names in SUMS.items() if title not in known}
        wanted = [title for title in every if title not in known]
        wanted += [name for names in sums.values() for name in names if name in every]
        scores = {title: self.scores(every[title]) for title in dict.fromkeys(wanted)}
        of_logits = {name: entropy(self.logits[name]).numpy() for name in (*EVALUATED, *TASKS)}
        for title, names in sums.items():
            scores[title] = standardised_sum([{**scores, "entropy": of_logits}[n] for n in names])
        return {t: self._auroc(found) for t, found in scores.items() if t not in known}

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


if __name__ == "__main__":
    tyro.cli(main)
