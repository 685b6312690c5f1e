"""One gate against every set of a protocol: numbers, scores and pictures of its mistakes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from goen.data.contact_sheet import save_png, sheet
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.extract import stream
from goen.files import whole_file
from goen.functional.logits import max_softmax_score
from goen.metrics import id_metrics, ood_calibration, ood_metrics
from goen.progress import note
from goen.results import Group, Result, write_results
from goen.scoring import Gate

Arrays = dict[str, NDArray[Any]]
_MISTAKES = 12
# What the metrics carry beside the metrics; an AUROC's interval stands in the row of the AUROC.
_NOT_METRICS = frozenset(
    {"auroc_low", "auroc_high", "level", "threshold", "num_id", "num_ood", "num_images"}
)


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


def evaluate(subject: Subject, protocol: Protocol, held_out: ImageSet, out: Path) -> Gate:
    """The gate with its metrics among its facts; results, scores and pictures lie in ``out``."""
    sets = {"test": protocol.test, **{n: o.images for n, o in protocol.evaluation.items()}}
    note(f"scoring {len(sets)} sets, {sum(len(images) for images in sets.values()):,} images")
    scores = {name: _score(subject.gate, images) for name, images in sets.items()}
    results = _results(subject, protocol, scores, held_out)
    write_results(out / "results.jsonl", results)
    with whole_file(out / "scores.safetensors") as temporary:
        tensors = {
            f"{name}/{key}": torch.from_numpy(np.ascontiguousarray(array))
            for name, arrays in scores.items()
            for key, array in arrays.items()
        }
        save_file(tensors, temporary)
    for name, images in sets.items():
        _draw_mistakes(name, images, scores[name], out / "mistakes" / f"{name}.png")
    told = ("auroc", "accuracy", "false_alarm_rate", "flagged")
    metrics = {f"{r.method}/{r.dataset}/{r.metric}": r.value for r in results if r.metric in told}
    gate = replace(subject.gate, facts={**subject.gate.facts, "metrics": metrics})
    gate.save(out / "gate")
    return gate


def _score(gate: Gate, images: ImageSet) -> Arrays:
    """The scores of every method from one pass of the network."""
    parts: list[Arrays] = []
    for outputs in stream(gate.network, images):
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
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _results(
    subject: Subject, protocol: Protocol, scores: Mapping[str, Arrays], held_out: ImageSet
) -> list[Result]:
    test = scores["test"]
    head_on: tuple[str, ...] = ()
    if subject.gate.head:
        head_on = tuple(map(_named, (subject.calibration, *subject.calibrating.values())))
    gate_on = (*head_on, _named(held_out))

    def rows(
        method: str,
        dataset: str,
        group: Group,
        numbers: Mapping[str, float],
        calibrated_on: tuple[str, ...] = (),
    ) -> list[Result]:
        interval = (numbers.get("auroc_low"), numbers.get("auroc_high"))
        return [
            Result(
                method=method,
                protocol=subject.protocol,
                seed=subject.seed,
                dataset=dataset,
                group=group,
                metric=metric,
                value=float(value),
                low=interval[0] if metric == "auroc" else None,
                high=interval[1] if metric == "auroc" else None,
                seen_in_calibration=bool(calibrated_on) and dataset in subject.calibrating,
                fitted_on=tuple(map(_named, subject.fitted_on)),
                calibrated_on=calibrated_on,
                network=subject.network,
                seconds=None,
            )
            for metric, value in numbers.items()
            if metric not in _NOT_METRICS
        ]

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


def _named(images: ImageSet) -> str:
    return f"{images.name}:{images.fingerprint}"


def _draw_mistakes(name: str, images: ImageSet, scores: Arrays, path: Path) -> None:
    """The worst mistakes: ID images flagged with the least p-value, OOD passed with the largest."""
    wrong = np.flatnonzero(scores["is_ood"] if name == "test" else ~scores["is_ood"])
    if not len(wrong):
        path.unlink(missing_ok=True)
        return
    p = scores["p_value"][wrong]
    worst = wrong[np.argsort(p if name == "test" else -p, kind="stable")][:_MISTAKES]
    verdict = "flagged, though in distribution" if name == "test" else "passed, though OOD"
    title = f"{images.name}: {len(wrong)} of {len(images)} {verdict}"
    save_png(sheet(title, [("", images.read(worst))]), path)
