"""Updating a gate: more training images, classes, held-out images, kinds of OOD."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
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
from goen.features.new_classes import WithNewClasses
from goen.features.precomputed import Precomputed
from goen.gate.base import BaseGate
from goen.gate.fitting.fit import calibrate
from goen.gate.fitting.groups import Groups, number_groups
from goen.gate.fitting.new_classes import check_new_classes, with_new_classes
from goen.gate.fitting.passes import Passes, run_passes
from goen.gate.fitting.sets import (
    CALIBRATION_SHARE,
    OOD,
    describe_stream,
    ood_streams,
    warn_of_copies,
)
from goen.gate.threshold import HeldOut
from goen.io.manifest import JsonObject, JsonValue
from goen.metrics import ood_metrics
from goen.models.placement import full_precision
from goen.outputs import Outputs

AnyGate = TypeVar("AnyGate", bound=BaseGate)


@dataclass(frozen=True)
class UpdateReport(Generic[AnyGate]):
    """The updated gate, and metrics of the same images before and after the update.

    Attributes:
        gate: the updated gate.
        before: by name: ``flagged/held_out`` (the held-out images that set the threshold), and
            ``auroc/KIND`` and ``flagged/KIND`` of every kind of OOD images, at the threshold of
            the whole gate. The gate was fitted on these images, so the numbers show what changed,
            not what to expect on other images. Empty if classes were added: the earlier gate has
            no outputs for them.
        after: the same after the update.
    """

    gate: AnyGate
    before: Mapping[str, float]
    after: Mapping[str, float]

    def __str__(self) -> str:
        width = max(map(len, self.after))
        lines = [f"{'':{width}}{'  before' if self.before else ''}   after"]
        for name, value in self.after.items():
            before = f"  {self.before[name]:.4f}" if self.before else ""
            lines.append(f"{name:{width}}{before}  {value:.4f}")
        return "\n".join(lines)


@full_precision()
def update_gate(
    gate: AnyGate,
    *,
    train: Images | None = None,
    held_out: Images | None = None,
    ood: Images | Mapping[str, Images] | None = None,
    groups: Groups | None = None,
    new_classes: Sequence[str] = (),
    batch_size: int = 128,
) -> UpdateReport[AnyGate]:
    """What the update changed, and the updated gate in it. This gate stays as it is.

    Every gate can have new held-out images. More training images need a detector that can be
    fitted in parts (goen-m, GOEN); new kinds of OOD images, one that keeps what it was
    calibrated with (goen-m); new classes, one that keeps images or means of each class (goen-m,
    GOEN), see ``docs/flagged.md``.

    Args:
        train: more ID images, with labels. The result equals a fit on all of them, old and
            new. All distances change, so ``held_out`` and every kind of OOD must be given
            again.
        held_out: ID images that replace the previous held-out images.
        ood: new kinds of OOD; the previous ones are kept. A kind of the same name is replaced.
        groups: of the new held-out images, as for ``fit``, if the gate was fitted with groups.
        new_classes: names of classes that the gate does not have. Images of them are among
            ``train``, with labels that go on after those of the gate, or in folders of these
            names. ``held_out`` is then a random sample of images of all classes.
        batch_size: as for ``fit``.

    Raises:
        UsageError: images missing that are needed again, or a detector that cannot be updated.
        FitError: a new class without training images.
        LeakError: an image in two of the sets.
    """
    added = (new_classes,) if isinstance(new_classes, str) else tuple(new_classes)
    grown = gate
    if added:
        if train is None or held_out is None:
            raise UsageError(
                "New classes need train, labelled images of them, and held_out, a random sample of "
                "ID images of all classes: not the ones that were labelled because they were "
                "flagged, for a threshold from those is too high."
            )
        grown = with_new_classes(gate, added)
    streams = _open(grown, {"train": train, "held_out": held_out}, ood, batch_size)
    report = _updated(grown, streams, groups, added)
    if not added:
        return report
    rates = replace(report.gate, per_class=gate.per_class, error_rate=gate.error_rate)
    return replace(report, gate=rates)


def _updated(
    gate: AnyGate,
    streams: dict[str, BatchStream],
    groups: Groups | None,
    added: Sequence[str],
) -> UpdateReport[AnyGate]:
    """The report of an update with these sets.

    Args:
        gate: with room for new classes.
        streams: the sets by role.
        groups: of the held-out images.
        added: the names of new classes.
    """
    splits = gate.metadata.get("splits")
    known = dict(splits) if isinstance(splits, Mapping) else {}
    _check(gate, streams, known)
    numbers = _groups(gate, streams, groups)
    old, new, network = gate.detector, copy.deepcopy(gate.detector), gate.network
    if isinstance(network, Precomputed | WithNewClasses):
        # More training images move the class means, too.
        network = network.with_classes(len(gate.classes))
        found = run_passes(network, new, streams, network)
    else:
        found = run_passes(network, new, streams)
    require_disjoint_streams(streams)
    if added:
        check_new_classes(network, found, added)
    hashes = _new_hashes(gate, streams)
    threshold, scores = _recalibrated(gate, new, found, numbers)
    if "held_out" in streams:
        warn_of_copies(streams["held_out"])
    found.near_copies(streams, grouped=numbers is not None)
    updated = replace(
        gate,
        network=network,
        detector=new,
        held_out=threshold,
        metadata=_metadata(gate, streams, known, found),
        image_hashes=hashes,
        compiled=None,
        diagnostics=None,
    )
    after = _numbers(new, updated.threshold, scores(new), new.ood_cues_, found.ood)
    before: dict[str, float] = {}
    if not added:
        before = _numbers(old, gate.threshold, scores(old), new.ood_cues_, found.ood)
    return UpdateReport(updated, before, after)


def _open(
    gate: BaseGate,
    given: Mapping[str, Images | None],
    ood: Images | Mapping[str, Images] | None,
    batch_size: int,
) -> dict[str, BatchStream]:
    """The sets by role, as streams of the gate's inputs."""
    asked: InputsOption = "images" if isinstance(gate.inputs, ImageInputs) else "tensors"
    reading = gate.reading
    streams = {
        role: as_stream(images, role, batch_size, asked, reading)
        for role, images in given.items()
        if images is not None
    } | ood_streams(gate.detector, ood, batch_size, asked, replace(reading, classes=()))
    if not streams:
        raise UsageError("Nothing to update: give train, held_out or ood images.")
    return {role: replace(stream, spec=gate.inputs) for role, stream in streams.items()}


def _groups(
    gate: BaseGate, streams: Mapping[str, BatchStream], groups: Groups | None
) -> NDArray[np.int64] | None:
    """Of the new held-out images."""
    if groups is None:
        if "held_out" in streams and gate.held_out.groups is not None:
            raise UsageError(
                "The held-out images of this gate come in groups: give groups of the new ones, or "
                "fit a gate without groups."
            )
        return None
    if "held_out" not in streams:
        raise UsageError("groups are those of new held-out images: give held_out, too.")
    return number_groups(groups, streams["held_out"].count)


def _metadata(
    gate: BaseGate, streams: Mapping[str, BatchStream], splits: JsonObject, found: Passes
) -> JsonObject:
    """That of the updated gate: its sets, and the accuracy on the new held-out images."""
    metadata = dict(gate.metadata)
    described: dict[str, JsonValue] = {
        role: describe_stream(stream) for role, stream in streams.items()
    }
    if "train" in described:
        described[f"train, added {len(splits)}"] = described.pop("train")
        metadata.pop("train_accuracy", None)  # of the earlier images alone
    metadata["splits"] = {**splits, **described}
    if "held_out" in found.others:
        metadata.pop("held_out_accuracy", None)  # of other images
        accuracy = found.others["held_out"].accuracy
        metadata |= {} if accuracy is None else {"held_out_accuracy": accuracy}
    return metadata


def _recalibrated(
    gate: BaseGate, new: Detector, found: Passes, groups: NDArray[np.int64] | None
) -> tuple[HeldOut, Callable[[Detector], Tensor]]:
    """The held-out images of the updated gate, and the scores a detector gives them.

    Calibrates the new detector where that is due.
    """
    old = gate.detector
    if "held_out" not in found.others:
        new.recalibrate(None, found.ood)
        held_out = gate.held_out
        cues = torch.tensor(held_out.require_cues())
        rounding = max(part.rounding(new) for part in found.others.values())
        properties = gate.held_out.properties
        threshold = HeldOut.from_cues(
            new,
            cues,
            answers=held_out.answers,
            rounding=rounding,
            properties=None if properties is None else torch.tensor(properties),
            groups=held_out.groups,
        )
        return threshold, lambda detector: detector.score_cues(cues)
    calibrates = new.calibrates(with_ood=bool(found.ood) or old.has_probability)
    again = calibrates and not _calibration_stays(old, with_ood=bool(found.ood))
    share = CALIBRATION_SHARE if again else 0.0
    threshold, diagnostics = calibrate(new, found, share, gate.false_alarm_rate, groups)
    rows = torch.from_numpy(np.flatnonzero(diagnostics.sets_threshold))
    outputs = found.others["held_out"].outputs[rows]
    return threshold, lambda detector: detector.score(outputs)


def _calibration_stays(detector: Detector, *, with_ood: bool) -> bool:
    """Whether new held-out images leave the detector as the old ones calibrated it."""
    return detector.has_probability and not detector.keeps_calibration and not with_ood


def _check(gate: BaseGate, streams: Mapping[str, BatchStream], splits: JsonObject) -> None:
    """Raise an error unless an update with these sets is possible."""
    detector = gate.detector
    missing = sorted(
        role.removeprefix(OOD) for role in splits if role.startswith(OOD) and role not in streams
    )
    with_ood = any(role.startswith(OOD) for role in streams)
    if "train" in streams:
        if not detector.can_update:
            raise UsageError(
                f"{detector} is fitted on all training images at once: fit the gate again with "
                "them."
            )
        if "held_out" not in streams:
            raise UsageError(
                "More training images change every distance, and with it the scores of the "
                "held-out images: give held_out again, the same images or more."
            )
        if missing or (detector.has_probability and not with_ood):
            raise UsageError(
                "More training images change every distance, also those of the OOD images: give "
                f"each kind again. Missing: {', '.join(missing) or 'all'}."
            )
    if with_ood and not detector.keeps_calibration and ("held_out" not in streams or missing):
        raise UsageError(
            f"{detector} keeps nothing of the images that calibrated it: give held_out and every "
            f"kind of OOD images again{': ' if missing else ''}{', '.join(missing)}."
        )
    require_disjoint_streams(streams)
    _new_hashes(gate, streams)
    for role, stream in streams.items():
        for other, split in splits.items():
            stays = other not in streams and other.partition(",")[0] != role
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


def _new_hashes(gate: BaseGate, streams: Mapping[str, BatchStream]) -> dict[str, Hashes]:
    """The hashes of the updated gate; a LeakError if an image would have two roles.

    Of an iterable only the images read so far are known: called before the pass and after it.
    """
    roles = {role: image_hashes(stream.digests()) for role, stream in streams.items()}
    with_ood = any(role.startswith(OOD) for role in streams)
    in_use = {"train"}
    stays = _calibration_stays(gate.detector, with_ood=with_ood)
    if stays and "calibration" not in gate.image_hashes:
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


def _numbers(
    detector: Detector,
    threshold: float,
    scores: Tensor,
    kept: Mapping[str, Tensor],
    given: Mapping[str, Outputs],
) -> dict[str, float]:
    """Shares flagged and AUROCs of a detector with its threshold.

    Args:
        detector: old or new.
        threshold: its own.
        scores: of held-out images.
        kept: cues of the kinds of OOD images that the updated detector keeps.
        given: outputs of the kinds that were given.
    """
    numbers = {"flagged/held_out": float((scores > threshold).double().mean())}
    ood = {kind: detector.score_cues(cues) for kind, cues in kept.items()}
    ood |= {kind: detector.score(outputs) for kind, outputs in given.items()}
    for kind, other in ood.items():
        numbers[f"auroc/{kind}"] = ood_metrics(scores.numpy(), other.numpy()).auroc
        numbers[f"flagged/{kind}"] = float((other > threshold).double().mean())
    return numbers
