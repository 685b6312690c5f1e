"""Evaluation: the results of any method on a protocol's sets, and those of a gate."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from goen.data.images.pixel_format import for_people
from goen.data.imageset import ImageSet
from goen.data.protocol import OodSet, Protocol
from goen.detectors import Detector, Goen
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.ranking import auroc, tally
from goen.gate import Gate
from goen.io.files import whole_file
from goen.io.manifest import JsonObject, JsonValue
from goen.io.provenance import hardware
from goen.io.results import (
    Mistakes,
    Origin,
    Result,
    write_mistakes,
    write_results,
    write_scores,
)
from goen.metrics import (
    holm,
    id_metrics,
    ood_calibration,
    ood_metrics,
    paired_auroc_test,
    selective_metrics,
)
from goen.outputs import Outputs
from goen.studies.base import BaseExperiment, FittedMethod
from goen.studies.methods import Network, labels_of
from goen.studies.networks import EpochRecord, write_epochs

_log = getLogger(__name__)

Arrays = dict[str, NDArray[Any]]
# Of each set; a report of ten such sets has twenty megabytes.
_MOST_MISTAKES = 500
WRONG = "test errors"
"""Under this name the scores of a comparison hold which answers of each method are wrong."""
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


def error_rows(
    origin: Origin, scores: NDArray[Any], wrong: NDArray[np.bool_], dataset: str = "test"
) -> list[Result]:
    """How well a score finds wrong answers on ID images; nothing if all are right, or all wrong.

    Args:
        origin: of the numbers.
        scores: of the images, an OOD score or an uncertainty.
        wrong: whether the predicted class of each is wrong.
        dataset: the name of the set in the results.
    """
    if wrong.all() or not wrong.any():
        return []
    return origin.rows(dataset, "id", asdict(selective_metrics(scores, wrong)))


def ood_rows(
    origin: Origin,
    scores: Mapping[str, Arrays],
    evaluation: Mapping[str, OodSet],
    seen: Collection[str],
) -> list[Result]:
    """Every OOD metric of one method on every OOD set.

    Args:
        origin: of the numbers.
        scores: of the ID images (``test``) and of each OOD set, by set and method.
        evaluation: the OOD sets.
        seen: the sets of a kind that calibrated the method.
    """
    rows: list[Result] = []
    for name, ood in evaluation.items():
        measured = asdict(ood_metrics(scores["test"][origin.method], scores[name][origin.method]))
        rows += origin.rows(name, ood.group, measured, seen=name in seen)
    return rows


def paired_tests(
    reference: Result, others: Sequence[Result], scores: Mapping[str, Arrays], metric: str
) -> list[Result]:
    """The p-values of differences in AUROC: DeLong's paired test with Holm's correction.

    Args:
        reference: the AUROC of one method on one set.
        others: those of others on the same set.
        scores: by set and method.
        metric: the name of the p-value, for results like those of the others.
    """
    test, ood = scores["test"], scores[reference.dataset]
    key = reference.method
    p_values = [
        paired_auroc_test(
            id_a=test[key], ood_a=ood[key], id_b=test[r.method], ood_b=ood[r.method]
        ).p_value
        for r in others
    ]
    return [
        replace(r, metric=metric, value=p, low=None, high=None)
        for r, p in zip(others, holm(p_values), strict=True)
    ]


def summary_of(
    study: str,
    config: JsonObject,
    protocol: Protocol | str,
    titles: Mapping[str, Sequence[str]],
    **more: JsonValue,
) -> JsonObject:
    """What ``run.json`` of a study holds.

    Args:
        study: its command.
        config: the options of the command.
        protocol: the images; or the name of the data, where no OOD images take part.
        titles: title and table section of each method, in the order of the tables.
        more: what this study has beside.
    """
    return {
        "study": study,
        "data": protocol if isinstance(protocol, str) else protocol.name,
        "config": config,
        "titles": {key: list(title) for key, title in titles.items()},
        "calibration_ood": [] if isinstance(protocol, str) else list(protocol.calibration_ood),
        "missing": {} if isinstance(protocol, str) else dict(protocol.missing),
        "skipped": {},
        **more,
    }


def evaluation_sets(protocol: Protocol) -> dict[str, ImageSet]:
    """The ID test set (``test``) and the OOD sets, by name."""
    return {"test": protocol.test, **{n: ood.images for n, ood in protocol.evaluation.items()}}


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
    for name, ood in protocol.evaluation.items():
        flagged = {"flagged": scores[name]["is_ood"].mean()}
        found += gate.rows(name, ood.group, flagged, seen=name in last.seen)
        if "probability" in test:
            numbers = probability_numbers(test["probability"], scores[name]["probability"])
            found += own.rows(name, ood.group, numbers, seen=name in last.seen)
    return found


def probability_numbers(id_: NDArray[Any], ood: NDArray[Any]) -> dict[str, float]:
    """Calibration of P(OOD), which depends on the prevalence: one half in the head's training."""
    probability = np.concatenate([id_, ood])
    is_ood = np.arange(len(probability)) >= len(id_)
    measured = ood_calibration(probability, is_ood)
    return {
        "ood_ece": measured.ece,
        "ood_brier": measured.brier,
        "ood_prevalence": float(is_ood.mean()),
    }


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
