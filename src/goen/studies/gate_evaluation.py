"""What a run measures of its gate: numbers, scores, a map of the features, the worst errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from goen.data.images.pixel_format import for_people
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.detectors import Detector, Goen
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.ranking import auroc, tally
from goen.gate import Gate
from goen.io.files import whole_file
from goen.io.provenance import hardware
from goen.io.results import Mistakes, Result, write_mistakes, write_results, write_scores
from goen.outputs import Outputs
from goen.studies.base import BaseExperiment, FittedMethod
from goen.studies.methods import Network, labels_of
from goen.studies.networks import EpochRecord, write_epochs
from goen.studies.rows import (
    Arrays,
    error_rows,
    evaluation_sets,
    flagged_rows,
    id_rows,
    ood_rows,
)

_log = getLogger(__name__)

# Of each set; a report of ten such sets has twenty megabytes.
_MOST_MISTAKES = 500
_MAP_POINTS = 500


@dataclass(frozen=True, eq=False)
class GateEvaluation:
    """The evaluation of a gate.

    Attributes:
        gate: with its metrics among its metadata.
        sets: the ID test set (``test``) and the OOD sets by name.
        results: every number with its origin.
        scores: of every method on every set, beside labels, p-values and logits.
        feature_map: points of every set, for a figure.
        head_epochs: of the calibration head's training, see ``head_epochs``; empty without one.
    """

    gate: Gate
    sets: Mapping[str, ImageSet]
    results: list[Result]
    scores: Mapping[str, Arrays]
    feature_map: Mapping[str, Tensor]
    head_epochs: list[EpochRecord]

    def write(self, out: Path) -> None:
        """Results, scores, feature map, images of the errors, the head's epochs, and the gate."""
        write_results(out / "results.jsonl", self.results)
        write_scores(out / "scores.safetensors", self.scores)
        with whole_file(out / "map.safetensors") as temporary:
            save_file(dict(self.feature_map), temporary)
        mistakes = {n: find_mistakes(n, images, self.scores[n]) for n, images in self.sets.items()}
        write_mistakes(out / "mistakes.safetensors", mistakes)
        write_epochs(out / "head.jsonl", self.head_epochs)
        self.gate.save(out / "gate", overwrite=True)


def evaluate_gate(
    gate: Gate, experiment: BaseExperiment[Any], fitted: Sequence[FittedMethod]
) -> GateEvaluation:
    """The gate's numbers, and those of methods, on the test set and every OOD set.

    Args:
        gate: of the last method.
        experiment: the networks and the sets.
        fitted: methods that score the outputs of one network.
    """
    sets = evaluation_sets(experiment.protocol)
    _log.info(f"scoring {len(sets)} sets, {sum(len(images) for images in sets.values()):,} images")
    own = fitted[-1].method
    scores = {
        name: {f.method.key: experiment.score(f, images)[0] for f in fitted}
        | gate_arrays(gate, experiment.outputs(own.network, images, own.forward_mode)[0])
        for name, images in sets.items()
    }
    scores["test"]["truth"] = np.asarray(experiment.protocol.test.labels)
    results = _results(experiment.protocol, fitted, scores)
    kept = ("auroc", "accuracy", "false_alarm_rate", "flagged")
    metrics = {f"{r.method}/{r.dataset}/{r.metric}": r.value for r in results if r.metric in kept}
    metadata = {**gate.metadata, "metrics": metrics, "hardware": hardware()}
    points = _feature_map(experiment, own.network, sets)
    epochs = head_epochs(
        gate.detector, {n: experiment.outputs(own.network, images)[0] for n, images in sets.items()}
    )
    return GateEvaluation(replace(gate, metadata=metadata), sets, results, scores, points, epochs)


def head_epochs(detector: Detector, outputs: Mapping[str, Outputs]) -> list[EpochRecord]:
    """After each epoch of the calibration head's training its mean scores, their gap, and AUROC.

    The mean scores are those of the images held out for early stopping. The AUROC of each OOD set
    is measured here, after the fit: nothing of it reaches the training.

    Args:
        detector: fitted; one without a head has no epochs.
        outputs: of the ID test set (``test``) and of the OOD sets, by name.
    """
    if not isinstance(detector, Goen) or not detector.head_epochs_:
        return []
    cues = {name: detector.cues(of_set) for name, of_set in outputs.items()}
    rows: list[EpochRecord] = []
    for number, epoch in enumerate(detector.head_epochs_):
        scores = {name: epoch.head.score(of_set).numpy() for name, of_set in cues.items()}
        test = scores.pop("test")
        areas = {f"auroc/{name}": float(auroc(tally(test, ood))) for name, ood in scores.items()}
        means = {"id_score": epoch.id_score, "ood_score": epoch.ood_score, "gap": epoch.gap}
        rows.append({"epoch": number, **means, **areas})
    return rows


def gate_arrays(gate: Gate, outputs: Outputs) -> Arrays:
    """What the gate returns for these outputs, by name, and the logits."""
    prediction = gate.predict_outputs(outputs)
    arrays: Arrays = {
        "p_value": prediction.p_value,
        "is_ood": prediction.is_ood,
        "label": prediction.label,
        "confidence": prediction.confidence,
        "logits": outputs.logits.numpy(),
    }
    if prediction.probability is not None:
        arrays["probability"] = prediction.probability
    if prediction.accepted is not None:
        arrays["accepted"] = prediction.accepted
    return arrays


def _results(
    protocol: Protocol, fitted: Sequence[FittedMethod], scores: Mapping[str, Arrays]
) -> list[Result]:
    """The numbers of the classifier, of every method, and of the gate of the last method."""
    last = fitted[-1]
    test = scores["test"]
    # Without seconds: a run ends with the same bytes whenever it was interrupted.
    own = replace(last.origin, seconds=None)
    classifier = replace(own, method="classifier", calibrated_on=())
    used = (*own.calibrated_on, protocol.held_out.identity)
    gate = replace(own, method="gate", calibrated_on=used)
    found = id_rows(classifier, test["logits"], protocol.test)
    flagged_id = test["is_ood"][protocol.sets_no_threshold]
    found += gate.rows("test", "id", {"false_alarm_rate": flagged_id.mean()})
    wrong = test["logits"].argmax(axis=1) != test["truth"]
    for f in fitted:
        origin = replace(f.origin, seconds=None)
        found += ood_rows(origin, scores, protocol.evaluation, f.seen)
        found += error_rows(origin, test[f.method.key], wrong)
    return found + flagged_rows(gate, own, scores, protocol.evaluation, last.seen)


def _feature_map(
    experiment: BaseExperiment[Any], network: Network, sets: Mapping[str, ImageSet]
) -> dict[str, Tensor]:
    """Points ``(n, 2)`` of each set on the first two principal axes of the training images.

    The points are the last features at unit length. Beside them ``classes``, the class means, and
    ``share``, the share of the training images' variance along each axis. The axes depend on
    neither OOD nor test images.
    """
    train = experiment.protocol.train
    outputs = experiment.outputs(network, train)[0]
    last = [*outputs.features][-1]
    rows = normalise(outputs.feature(last))
    statistics = ClassStatistics(len(train.classes), rows.shape[1])
    statistics.update(rows, labels_of(train.labels))
    centre, axes, share = _principal_axes(statistics)
    points = {}
    for name, images in sets.items():
        # Evenly spaced, so that a set sorted by class is represented as a whole.
        chosen = torch.linspace(0, len(images) - 1, min(len(images), _MAP_POINTS)).round().long()
        rows = normalise(experiment.outputs(network, images)[0].feature(last)[chosen])
        points[f"{name}/points"] = (rows - centre) @ axes
    return {**points, "classes": (statistics.means_ - centre) @ axes, "share": share}


def _principal_axes(statistics: ClassStatistics) -> tuple[Tensor, Tensor, Tensor]:
    """The mean ``(D,)``, two unit axes ``(D, 2)`` and the share of variance along each ``(2,)``."""
    values, vectors = torch.linalg.eigh(statistics.total_scatter_)
    axes = vectors[:, -2:].flip(1)
    # The sign of an eigenvector is arbitrary: its largest entry is made positive.
    largest = axes.abs().argmax(dim=0)
    axes = axes * axes.gather(0, largest[None]).sign()
    return statistics.total_mean_, axes, values[-2:].flip(0) / values.sum()


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
    _, height, width = images.image_shape
    shown = np.empty((len(rows), 3, height, width), np.uint8)
    for place, image in enumerate(images.read(rows)):
        shown[place] = for_people(image)
    return Mistakes(rows, shown)
