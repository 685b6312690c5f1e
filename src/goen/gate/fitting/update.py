"""Updating a gate: more training images, new held-out images, more kinds of OOD."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from goen.data.input_spec import ImageInputs, InputsOption
from goen.data.inputs import (
    BatchStream,
    Hashes,
    Images,
    as_stream,
    image_hashes,
    require_disjoint_streams,
)
from goen.detectors import Detector
from goen.errors import LeakError, UsageError
from goen.features.precomputed import Precomputed
from goen.gate.base import BaseGate
from goen.gate.fitting.fit import calibrate
from goen.gate.fitting.passes import HeldOutPass, fit_detector, gather
from goen.gate.fitting.sets import (
    CALIBRATION_SHARE,
    describe_stream,
    ood_streams,
    warn_of_copies,
)
from goen.gate.threshold import HeldOut
from goen.io.manifest import JsonObject, JsonValue
from goen.metrics import ood_metrics
from goen.models.placement import evaluating

AnyGate = TypeVar("AnyGate", bound=BaseGate)


@dataclass(frozen=True)
class UpdateReport(Generic[AnyGate]):
    """The updated gate, and metrics of the same images before and after the update.

    Attributes:
        gate: the updated gate.
        before: by name: ``flagged/held_out`` (the held-out images that set the threshold), and
            ``auroc/KIND`` and ``flagged/KIND`` of every kind of OOD images, at the threshold of
            the whole gate. The gate was fitted on these images, so the numbers show what changed,
            not what to expect on other images.
        after: the same after the update.
    """

    gate: AnyGate
    before: Mapping[str, float]
    after: Mapping[str, float]

    def __str__(self) -> str:
        width = max(map(len, self.after))
        lines = [f"{'':{width}}  before   after"]
        lines += [f"{k:{width}}  {self.before[k]:.4f}  {self.after[k]:.4f}" for k in self.after]
        return "\n".join(lines)


@dataclass(frozen=True)
class _NewSets:
    """The images of an update; what is not given stays as it was."""

    train: BatchStream | None
    held_out: BatchStream | None
    ood: Mapping[str, BatchStream]

    def by_role(self) -> dict[str, BatchStream]:
        given = {"train": self.train, "held_out": self.held_out}
        roles = {role: stream for role, stream in given.items() if stream is not None}
        return roles | {f"ood {kind}": stream for kind, stream in self.ood.items()}


def update_gate(
    gate: AnyGate,
    *,
    train: Images | None,
    held_out: Images | None,
    ood: Images | Mapping[str, Images] | None,
    batch_size: int,
) -> UpdateReport[AnyGate]:
    """The updated gate and what changed; see ``Gate.update``."""

    def stream(images: Images | None, role: str) -> BatchStream | None:
        if images is None:
            return None
        return replace(as_stream(images, role, batch_size, asked), spec=gate.inputs)

    asked: InputsOption = "images" if isinstance(gate.inputs, ImageInputs) else "tensors"
    kinds = ood_streams(ood, batch_size, asked)
    if train is None and held_out is None and not kinds:
        raise UsageError("Nothing to update: give train, held_out or ood images.")
    sets = _NewSets(
        stream(train, "train"),
        stream(held_out, "held_out"),
        {kind: replace(s, spec=gate.inputs) for kind, s in kinds.items()},
    )
    _check(gate, sets)
    return _updated(gate, sets)


@dataclass(frozen=True)
class _Passes:
    """What the passes over the new sets gave."""

    trained: int
    held_out: HeldOutPass | None
    ood: Mapping[str, HeldOutPass]


def _updated(gate: AnyGate, sets: _NewSets) -> UpdateReport[AnyGate]:
    old = gate.detector
    # More training images move the class means of a network of features, too.
    new, network = copy.deepcopy(old), gate.network
    if isinstance(network, Precomputed):
        network = copy.deepcopy(network)
    found = _pass(gate, network, sets, new)
    require_disjoint_streams(sets.by_role())
    hashes = _new_hashes(gate, sets)
    held_out, seen = _recalibrated(gate, new, found)
    if sets.held_out is not None:
        warn_of_copies(sets.held_out)
    metadata = dict(gate.metadata)
    splits = _splits(gate.metadata)
    described: dict[str, JsonValue] = {
        role: describe_stream(stream) for role, stream in sets.by_role().items()
    }
    if "train" in described:
        splits[f"train, added {len(splits)}"] = described.pop("train")
        metadata.pop("train_accuracy", None)  # of the earlier images alone
    metadata["splits"] = splits | described
    if found.held_out is not None:
        metadata.pop("held_out_accuracy", None)  # of other images
        accuracy = found.held_out.accuracy
        metadata |= {} if accuracy is None else {"held_out_accuracy": accuracy}
    updated = replace(
        gate,
        network=network,
        detector=new,
        held_out=held_out,
        metadata=metadata,
        image_hashes=hashes,
    )
    before = _numbers(old, gate.threshold, seen.before, _ood_scores(old, new, found))
    after = _numbers(new, updated.threshold, seen.after, _ood_scores(new, new, found))
    return UpdateReport(updated, before, after)


def _pass(gate: BaseGate, network: torch.nn.Module, sets: _NewSets, new: Detector) -> _Passes:
    """One pass over each set; training images are added to the detector."""
    running = new.prepare_network(network)
    trained = 0
    with evaluating(network):
        if sets.train is not None:
            means = network if isinstance(network, Precomputed) else None
            trained = fit_detector(running, sets.train, new, means).count
        held_out = None
        if sets.held_out is not None:
            held_out = gather(running, sets.held_out, gate.detector.features)
        ood = {kind: gather(running, s, new.features) for kind, s in sets.ood.items()}
    return _Passes(trained, held_out, ood)


@dataclass(frozen=True)
class _Seen:
    """Scores of the images that set the new threshold, by the old detector and the new."""

    before: Tensor
    after: Tensor


def _recalibrated(gate: BaseGate, new: Detector, found: _Passes) -> tuple[HeldOut, _Seen]:
    """The held-out images of the updated gate; calibrates the new detector where that is due."""
    ood = {kind: part.outputs for kind, part in found.ood.items()}
    if found.held_out is None:
        new.recalibrate(None, ood)
        kept = torch.tensor(gate.held_out.require_cues())
        labels = gate.held_out.labels
        rounding = max(part.rounding(new) for part in found.ood.values())
        held_out = HeldOut.from_cues(
            new, kept, labels=None if labels is None else torch.tensor(labels), rounding=rounding
        )
        return held_out, _Seen(gate.detector.score_cues(kept), new.score_cues(kept))
    calibrates = new.calibrates(with_ood=bool(ood) or gate.detector.has_probability)
    again = calibrates and not _calibration_stays(gate, ood)
    share = CALIBRATION_SHARE if again else 0.0
    calibrated = calibrate(new, found.held_out, share, ood, gate.false_alarm_rate)
    rows = torch.from_numpy(calibrated.diagnostics.sets_threshold)
    outputs = found.held_out.outputs[torch.nonzero(rows).flatten()]
    return calibrated.held_out, _Seen(gate.detector.score(outputs), new.score(outputs))


def _calibration_stays(gate: BaseGate, ood: Mapping[str, object]) -> bool:
    """Whether new held-out images leave the detector as the old ones calibrated it."""
    detector = gate.detector
    return detector.has_probability and not detector.keeps_calibration and not ood


def _check(gate: BaseGate, sets: _NewSets) -> None:
    detector, splits = gate.detector, _splits(gate.metadata)
    kinds = {role.removeprefix("ood ") for role in splits if role.startswith("ood ")}
    missing = sorted(kinds - {*sets.ood})
    if sets.train is not None and not detector.can_update:
        raise UsageError(
            f"{detector} is fitted on all training images at once: fit the gate again with them."
        )
    if sets.train is not None and sets.held_out is None:
        raise UsageError(
            "More training images change every distance, and with it the scores of the held-out "
            "images: give held_out again, the same images or more."
        )
    if sets.train is not None and (missing or (detector.has_probability and not sets.ood)):
        raise UsageError(
            "More training images change every distance, also those of the OOD images: give each "
            f"kind again. Missing: {', '.join(missing) or 'all'}."
        )
    if sets.ood and not detector.calibrates(with_ood=True):
        raise UsageError(f"{detector} does not use OOD images: leave ood out.")
    if sets.ood and not detector.keeps_calibration and (sets.held_out is None or missing):
        raise UsageError(
            f"{detector} keeps nothing of the images that calibrated it: give held_out and every "
            f"kind of OOD images again{': ' if missing else ''}{', '.join(missing)}."
        )
    roles = sets.by_role()
    require_disjoint_streams(roles)
    _new_hashes(gate, sets)
    for role, stream in roles.items():
        for other, split in splits.items():
            stays = other not in roles and other.partition(",")[0] != role
            same = (
                stream.images is not None
                and isinstance(split, Mapping)
                and split.get("fingerprint") == stream.images.fingerprint
            )
            if stays and same:
                raise LeakError(
                    f"{role} is {stream.name}, which already is the gate's {other} set. The "
                    "training, held-out and OOD sets must be disjoint."
                )


def _new_hashes(gate: BaseGate, sets: _NewSets) -> dict[str, Hashes]:
    """The hashes of the updated gate; a LeakError if an image would have two roles.

    Of an iterable only the images read so far are known: called before the pass and after it.
    """
    roles = {role: image_hashes(stream.digests()) for role, stream in sets.by_role().items()}
    in_use = {"train"}
    if _calibration_stays(gate, sets.ood) and "calibration" not in gate.image_hashes:
        in_use.add("held_out")  # some of them calibrated the detector
    for role, new in roles.items():
        for other, old in gate.image_hashes.items():
            if other == role == "train" or (other in roles and other not in in_use):
                continue  # more of the same, or replaced by this update
            shared = len(np.intersect1d(new, old))
            if shared and other == role:
                raise LeakError(
                    f"{shared} images of held_out were held out before, and {gate.detector} was "
                    "calibrated with some of those: they cannot set its threshold. Give new "
                    "held-out images, or every kind of OOD images again."
                )
            if shared:
                raise LeakError(
                    f"{shared} images of {role} are in the gate's {other} already, pixel for "
                    "pixel. The training, held-out and OOD sets must be disjoint."
                )
    merged = {**gate.image_hashes, **roles}
    for role in in_use & roles.keys() & gate.image_hashes.keys():
        merged[role] = np.union1d(gate.image_hashes[role], roles[role])
    return merged


def _splits(metadata: JsonObject) -> dict[str, JsonValue]:
    splits = metadata.get("splits", {})
    return dict(splits) if isinstance(splits, Mapping) else {}


def _ood_scores(detector: Detector, kept_by: Detector, found: _Passes) -> dict[str, Tensor]:
    """The scores of each kind of OOD images that is at hand: those given, and those kept."""
    kept = {kind: detector.score_cues(cues) for kind, cues in kept_by.ood_cues.items()}
    return kept | {kind: detector.score(part.outputs) for kind, part in found.ood.items()}


def _numbers(
    detector: Detector, threshold: float, scores: Tensor, ood: Mapping[str, Tensor]
) -> dict[str, float]:
    """Shares flagged and AUROCs of a detector with its threshold."""
    numbers = {"flagged/held_out": float((scores > threshold).double().mean())}
    for kind, other in ood.items():
        numbers[f"auroc/{kind}"] = ood_metrics(scores.numpy(), other.numpy()).auroc
        numbers[f"flagged/{kind}"] = float((other > threshold).double().mean())
    return numbers
