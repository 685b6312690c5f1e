"""Evaluation: the results of any method on a protocol's sets, and those of a gate."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.detectors import Detector, Goen, MaxSoftmax
from goen.extraction import BATCH_SIZE
from goen.files import check_free, whole_file
from goen.functional.gaussian import ClassStatistics
from goen.gate import Gate
from goen.metrics import id_metrics, ood_calibration, ood_metrics
from goen.models import Backbone
from goen.runs.artifacts import saved
from goen.runs.provenance import hardware
from goen.runs.recognise import MAP
from goen.runs.results import (
    Mistakes,
    Origin,
    Result,
    write_mistakes,
    write_results,
    write_scores,
)
from goen.runs.stages import Stages
from goen.studies.networks import all_features, outputs

_log = getLogger(__name__)

Arrays = dict[str, NDArray[Any]]
# Of each set; a report of ten such sets has twenty megabytes.
_MOST_MISTAKES = 500
_MAP_POINTS = 500


def id_rows(
    origin: Origin, logits: NDArray[Any], images: ImageSet, dataset: str = "test", **more: float
) -> list[Result]:
    """Accuracy, ECE, NLL and Brier score of a classifier on ID images, and further numbers.

    Args:
        origin: of the numbers.
        logits: of the images.
        images: with their labels.
        dataset: the name of the set in the results.
        more: further numbers by metric.
    """
    numbers = asdict(id_metrics(logits=logits, labels=images.labels))
    return origin.rows(dataset, "id", {**numbers, **more})


def ood_rows(
    origin: Origin, scores: Mapping[str, NDArray[Any]], protocol: Protocol, seen: Collection[str]
) -> list[Result]:
    """Every OOD metric of one method on every OOD set of the protocol.

    Args:
        origin: of the numbers.
        scores: of the ID images (``test``) and of each OOD set, by name.
        protocol: the sets.
        seen: the sets of a kind that calibrated the method.
    """
    rows: list[Result] = []
    for name, ood in protocol.evaluation.items():
        measured = asdict(ood_metrics(scores["test"], scores[name]))
        rows += origin.rows(name, ood.group, measured, seen=name in seen)
    return rows


@dataclass(frozen=True, eq=False)
class GateStudy:
    """A gate to evaluate, and its origin.

    Attributes:
        gate: with the detector ``Goen``, and a network of goen's.
        budget: of the training.
        seed: of the training.
        network: the key of the trained network.
        trained_on: the sets that the network was trained on.
        calibrated_on: the ID set and the OOD sets that trained the head; empty without one.
        held_out: the set for the threshold.
        ood_seen: names of the OOD sets that trained the head.
    """

    gate: Gate
    budget: str
    seed: int
    network: str
    trained_on: tuple[ImageSet, ...]
    calibrated_on: tuple[ImageSet, ...]
    held_out: ImageSet
    ood_seen: tuple[str, ...]

    @property
    def goen(self) -> Goen:
        """The gate's detector."""
        assert isinstance(self.gate.detector, Goen)
        return self.gate.detector

    @property
    def backbone(self) -> Backbone:
        """The gate's network."""
        assert isinstance(self.gate.network, Backbone)
        return self.gate.network

    @property
    def detectors(self) -> dict[str, Detector]:
        """The methods that score one pass of the network; the last is the gate's."""
        without_head = self.goen.with_head(None, None)
        found: dict[str, Detector] = {"max_softmax": MaxSoftmax(), "goen_distance": without_head}
        return found | ({"goen": self.goen} if self.goen.has_probability else {})

    def origin(self, method: str) -> Origin:
        """The origin of this method's numbers."""
        used = self.calibrated_on if method in ("goen", "gate") else ()
        if method == "gate":
            used = (*used, self.held_out)
        return Origin(
            method,
            self.budget,
            self.seed,
            self.network,
            tuple(images.identity for images in self.trained_on),
            tuple(images.identity for images in used),
        )


def check_outputs(out: Path) -> None:
    """Raise a UsageError if writing an evaluation would replace files that goen did not write."""
    check_free(out / "gate", saved("gate"), folder=True)


@dataclass(frozen=True, eq=False)
class GateEvaluation:
    """The evaluation of a gate.

    Attributes:
        gate: with its metrics among its facts.
        sets: the ID test set (``test``) and the OOD sets by name.
        results: every number with its origin.
        scores: of every method on every set, beside labels, p-values and logits.
        feature_map: points of every set, for a figure.
    """

    gate: Gate
    sets: Mapping[str, ImageSet]
    results: list[Result]
    scores: Mapping[str, Arrays]
    feature_map: Mapping[str, Tensor]

    def write(self, out: Path) -> None:
        """Results, scores, feature map, images of the errors, and the gate."""
        write_results(out / "results.jsonl", self.results)
        write_scores(out / "scores.safetensors", self.scores)
        with whole_file(out / "map.safetensors", MAP) as temporary:
            save_file(dict(self.feature_map), temporary)
        mistakes = {n: find_mistakes(n, images, self.scores[n]) for n, images in self.sets.items()}
        write_mistakes(out / "mistakes.safetensors", mistakes)
        self.gate.save(out / "gate")


def evaluate_gate(study: GateStudy, protocol: Protocol, stages: Stages) -> GateEvaluation:
    """The gate's numbers, and those of other methods, on the test set and every OOD set.

    Args:
        study: the gate.
        protocol: the sets.
        stages: finished work: a set passes through a network once for all studies.
    """
    sets = {"test": protocol.test, **{n: o.images for n, o in protocol.evaluation.items()}}
    _log.info(f"scoring {len(sets)} sets, {sum(len(images) for images in sets.values()):,} images")
    scores, features = {}, {}
    for name, images in sets.items():
        scores[name], features[name] = _score(study, images, stages)
    scores["test"]["truth"] = np.asarray(protocol.test.labels)
    results = _results(study, protocol, scores)
    kept = ("auroc", "accuracy", "false_alarm_rate", "flagged")
    metrics = {f"{r.method}/{r.dataset}/{r.metric}": r.value for r in results if r.metric in kept}
    facts = {**study.gate.facts, "metrics": metrics, "hardware": hardware()}
    gate = replace(study.gate, facts=facts)
    return GateEvaluation(gate, sets, results, scores, _feature_map(study.goen, features))


def _score(study: GateStudy, images: ImageSet, stages: Stages) -> tuple[Arrays, Tensor]:
    """The scores of every method, and features for the map, from one pass of the network."""
    features = all_features(study.backbone)
    whole, _ = outputs(study.backbone, study.network, images, stages, features=features)
    parts: list[Arrays] = []
    detectors = study.detectors
    for start in range(0, len(whole), BATCH_SIZE):
        batch = whole[start : start + BATCH_SIZE]
        prediction = study.gate.predict_outputs(batch)
        part: Arrays = {
            **{key: d.score(batch).numpy() for key, d in detectors.items()},
            "p_value": prediction.p_value,
            "is_ood": prediction.is_ood,
            "label": prediction.label,
            "logits": batch.logits.numpy(),
        }
        if prediction.probability is not None:
            part["probability"] = prediction.probability
        parts.append(part)
    scores = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    # Evenly spaced, so that a set sorted by class is represented as a whole.
    chosen = torch.linspace(0, len(images) - 1, min(len(images), _MAP_POINTS)).round().long()
    return scores, study.goen.gaussians.rows(whole[chosen])


def _feature_map(detector: Goen, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Points ``(n, 2)`` of each set on the first two principal axes of the training images.

    Beside them ``classes``, the class means, and ``share``, the share of the training images'
    variance along each axis. The axes depend on neither OOD nor test images.
    """
    statistics = detector.gaussians.statistics
    centre, axes, share = _principal_axes(statistics)
    means = statistics.means_
    points = {f"{name}/points": (rows - centre) @ axes for name, rows in features.items()}
    return {**points, "classes": (means - centre) @ axes, "share": share}


def _principal_axes(statistics: ClassStatistics) -> tuple[Tensor, Tensor, Tensor]:
    """The mean ``(D,)``, two unit axes ``(D, 2)`` and the share of variance along each ``(2,)``."""
    values, vectors = torch.linalg.eigh(statistics.total_scatter_)
    axes = vectors[:, -2:].flip(1)
    # The sign of an eigenvector is arbitrary: its largest entry is made positive.
    largest = axes.abs().argmax(dim=0)
    axes = axes * axes.gather(0, largest[None]).sign()
    return statistics.total_mean_, axes, values[-2:].flip(0) / values.sum()


def _results(study: GateStudy, protocol: Protocol, scores: Mapping[str, Arrays]) -> list[Result]:
    test = scores["test"]
    gate = study.origin("gate")
    found = id_rows(study.origin("classifier"), test["logits"], protocol.test)
    found += gate.rows("test", "id", {"false_alarm_rate": test["is_ood"].mean()})
    for method in study.detectors:
        by_set = {name: arrays[method] for name, arrays in scores.items()}
        seen = study.ood_seen if method == "goen" else ()
        found += ood_rows(study.origin(method), by_set, protocol, seen)
    for name, ood in protocol.evaluation.items():
        seen_here = name in study.ood_seen
        flagged = {"flagged": scores[name]["is_ood"].mean()}
        found += gate.rows(name, ood.group, flagged, seen=seen_here)
        if study.goen.has_probability:
            numbers = _probability_numbers(test["probability"], scores[name]["probability"])
            found += study.origin("goen").rows(name, ood.group, numbers, seen=seen_here)
    return found


def _probability_numbers(id_: NDArray[Any], ood: NDArray[Any]) -> dict[str, float]:
    """Calibration of P(OOD), which depends on the prevalence: one half in the head's training."""
    probability = np.concatenate([id_, ood])
    is_ood = np.arange(len(probability)) >= len(id_)
    measured = ood_calibration(probability, is_ood)
    return {
        "ood_ece": measured.ece,
        "ood_brier": measured.brier,
        "ood_prevalence": float(is_ood.mean()),
    }


def find_mistakes(name: str, images: ImageSet, scores: Arrays) -> Mistakes:
    """The most confident errors: flagged ID images with the smallest p-values, and vice versa.

    Args:
        name: of the set; ``test`` is ID.
        images: the set.
        scores: of its images, with ``is_ood`` and ``p_value``.
    """
    wrong = np.flatnonzero(scores["is_ood"] if name == "test" else ~scores["is_ood"])
    p = scores["p_value"][wrong]
    order = np.argsort(p if name == "test" else -p, kind="stable")[:_MOST_MISTAKES]
    rows = wrong[order].astype(np.int64)
    return Mistakes(rows, images.read(rows))
