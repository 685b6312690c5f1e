"""One gate against every set of a protocol: numbers, scores, a map and pictures of its mistakes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from goen.artifacts import hardware, saved
from goen.data.contact_sheet import save_png, sheet
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.extraction import stream
from goen.files import check_free, remove_own, whole_file
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.logits import max_softmax_score
from goen.metrics import id_metrics, ood_calibration, ood_metrics
from goen.progress import note
from goen.recognise import MAP, SHEET
from goen.results import Group, Origin, Result, write_results, write_scores
from goen.scoring import Gate

Arrays = dict[str, NDArray[Any]]
_MISTAKES = 12
_SHEET_COLUMNS = 6  # as many as a phone shows at full size
_MAP_POINTS = 500


@dataclass(frozen=True)
class Subject:
    """Who is evaluated, and what has already been used to make it."""

    gate: Gate
    protocol: str
    seed: int
    network: str
    fitted_on: tuple[ImageSet, ...]
    calibration: ImageSet
    calibrating: Mapping[str, ImageSet]

    @property
    def methods(self) -> tuple[str, ...]:
        """The scores that one pass of the network gives."""
        return ("max_softmax", "mahalanobis_z", *(("goen",) if self.gate.head else ()))


def check_outputs(protocol: Protocol, out: Path) -> None:
    """Raise a UsageError if ``evaluate`` would replace what goen did not write."""
    check_free(out / "gate", saved("gate"), folder=True)
    for name in ("test", *protocol.evaluation):
        check_free(_sheet_of(name, out), SHEET)


def _sheet_of(name: str, out: Path) -> Path:
    return out / "mistakes" / f"{name}.png"


def evaluate(subject: Subject, protocol: Protocol, held_out: ImageSet, out: Path) -> Gate:
    """The gate with its metrics among its facts; results, scores and pictures lie in ``out``."""
    sets = {"test": protocol.test, **{n: o.images for n, o in protocol.evaluation.items()}}
    note(f"scoring {len(sets)} sets, {sum(len(images) for images in sets.values()):,} images")
    scores, points = {}, {}
    for name, images in sets.items():
        scores[name], points[name] = _score(subject.gate, images)
    scores["test"]["truth"] = np.asarray(protocol.test.labels)
    results = _results(subject, protocol, scores, held_out)
    write_results(out / "results.jsonl", results)
    write_scores(out / "scores.safetensors", scores)
    with whole_file(out / "map.safetensors", MAP) as temporary:
        save_file(_map(subject.gate, points), temporary)
    for name, images in sets.items():
        _draw_mistakes(name, images, scores[name], _sheet_of(name, out))
    told = ("auroc", "accuracy", "false_alarm_rate", "flagged")
    metrics = {f"{r.method}/{r.dataset}/{r.metric}": r.value for r in results if r.metric in told}
    known = {"metrics": metrics, "hardware": hardware()}
    gate = replace(subject.gate, facts={**subject.gate.facts, **known})
    gate.save(out / "gate")
    return gate


def _score(gate: Gate, images: ImageSet) -> tuple[Arrays, Tensor]:
    """The scores of every method, and features for the map, from one pass of the network."""
    parts: list[Arrays] = []
    mapped: list[Tensor] = []
    # Evenly spaced, so that a set sorted by class is seen whole.
    chosen = torch.linspace(0, len(images) - 1, min(len(images), _MAP_POINTS)).round().long()
    start = 0
    for outputs in stream(gate.network, images):
        rows = chosen[(chosen >= start) & (chosen < start + len(outputs))] - start
        mapped.append(normalise(outputs.features[gate.density.feature][rows]))
        start += len(outputs)
        prediction = gate.judge(outputs)
        part: Arrays = {
            "max_softmax": max_softmax_score(outputs.logits).numpy(),
            "mahalanobis_z": prediction.cues["log_distance"],
            "p_value": prediction.p_value,
            "is_ood": prediction.is_ood,
            "label": prediction.label,
            "logits": outputs.logits.numpy(),
        }
        if prediction.probability is not None:
            part |= {"goen": prediction.score, "probability": prediction.probability}
        parts.append(part)
    scores = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return scores, torch.cat(mapped)


def _map(gate: Gate, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Points ``(n, 2)`` of each set on the first two principal axes of the training images.

    Beside them ``classes``, the class means, and ``share`` of the training images' variance that
    either axis shows. No OOD image and no test image chose the axes.
    """
    statistics = gate.density.statistics_
    assert statistics is not None  # a gate's density is fitted
    centre, axes, share = _principal_axes(statistics)
    means = statistics.means_
    points = {f"{name}/points": (rows - centre) @ axes for name, rows in features.items()}
    return {**points, "classes": (means - centre) @ axes, "share": share}


def _principal_axes(statistics: ClassStatistics) -> tuple[Tensor, Tensor, Tensor]:
    """The mean ``(D,)``, two unit axes ``(D, 2)`` and the share of variance along each ``(2,)``."""
    values, vectors = torch.linalg.eigh(statistics.total_scatter_)
    axes = vectors[:, -2:].flip(1)
    # An eigenvector has no sign of its own: its largest entry is made positive.
    largest = axes.abs().argmax(dim=0)
    axes = axes * axes.gather(0, largest[None]).sign()
    return statistics.total_mean_, axes, values[-2:].flip(0) / values.sum()


def _results(
    subject: Subject, protocol: Protocol, scores: Mapping[str, Arrays], held_out: ImageSet
) -> list[Result]:
    test = scores["test"]
    head_on: tuple[str, ...] = ()
    if subject.gate.head:
        head_on = tuple(
            images.identity for images in (subject.calibration, *subject.calibrating.values())
        )
    gate_on = (*head_on, held_out.identity)

    def rows(
        method: str,
        dataset: str,
        group: Group,
        numbers: Mapping[str, float],
        calibrated_on: tuple[str, ...] = (),
    ) -> list[Result]:
        origin = Origin(
            method,
            subject.protocol,
            subject.seed,
            subject.network,
            tuple(images.identity for images in subject.fitted_on),
            calibrated_on,
        )
        seen = bool(calibrated_on) and dataset in subject.calibrating
        return origin.rows(dataset, group, numbers, seen=seen)

    right = asdict(id_metrics(logits=test["logits"], labels=protocol.test.labels))
    found = rows("classifier", "test", "id", right)
    found += rows("gate", "test", "id", {"false_alarm_rate": test["is_ood"].mean()}, gate_on)
    for name, ood in protocol.evaluation.items():
        other = scores[name]
        for method in subject.methods:
            measured = asdict(ood_metrics(test[method], other[method]))
            used = head_on if method == "goen" else ()
            found += rows(method, name, ood.group, measured, used)
        found += rows("gate", name, ood.group, {"flagged": other["is_ood"].mean()}, gate_on)
        if subject.gate.head:
            probability = np.concatenate([test["probability"], other["probability"]])
            is_ood = np.arange(len(probability)) >= len(test["probability"])
            honest = ood_calibration(probability, is_ood)
            # Calibration depends on how much OOD there is; the head was trained at one half.
            share = float(is_ood.mean())
            numbers = {"ood_ece": honest.ece, "ood_brier": honest.brier, "ood_prevalence": share}
            found += rows("goen", name, ood.group, numbers, head_on)
    return found


def _draw_mistakes(name: str, images: ImageSet, scores: Arrays, path: Path) -> None:
    """The worst mistakes: ID images flagged with the least p-value, OOD passed with the largest."""
    wrong = np.flatnonzero(scores["is_ood"] if name == "test" else ~scores["is_ood"])
    if not len(wrong):
        remove_own(path, SHEET)
        return
    p = scores["p_value"][wrong]
    worst = wrong[np.argsort(p if name == "test" else -p, kind="stable")][:_MISTAKES]
    verdict = "flagged, though in distribution" if name == "test" else "passed, though OOD"
    title = f"{images.name}: {len(wrong)} of {len(images)} {verdict}"
    rows = [worst[i : i + _SHEET_COLUMNS] for i in range(0, len(worst), _SHEET_COLUMNS)]
    save_png(sheet(title, [("", images.read(row)) for row in rows]), path)
