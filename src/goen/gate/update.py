"""Updating a gate: more training images in its bank, new held-out images, more kinds of OOD."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from goen.data.inputs import (
    BatchStream,
    Hashes,
    Images,
    as_stream,
    image_hashes,
    require_disjoint_streams,
)
from goen.data.kinds import AskedInputs, ImageInputs
from goen.detectors import GoenM
from goen.errors import LeakError, UsageError
from goen.gate._passes import CuePass, measure_cues, split_held_out
from goen.gate.fit import calibrate, describe_stream, ood_streams, warn_of_copies
from goen.gate.gate import Gate
from goen.gate.held_out import HeldOut
from goen.gate.partial import read_training
from goen.models.placement import evaluating
from goen.models.precomputed import Precomputed
from goen.runs.manifest import JsonObject, JsonValue


@dataclass(frozen=True)
class Change:
    """What an update changed: metrics of the same images before and after it.

    Attributes:
        before: by name: ``flagged/held_out`` (the held-out images that set the threshold), and
            ``auroc/KIND`` and ``flagged/KIND`` of every kind of OOD images, at the threshold of
            the whole gate. The gate was fitted on these images, so the numbers show what changed,
            not what to expect on other images.
        after: the same after the update.
    """

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
    gate: Gate,
    *,
    train: Images | None,
    held_out: Images | None,
    ood: Images | Mapping[str, Images] | None,
    batch_size: int,
) -> tuple[Gate, Change]:
    """The updated gate and what changed; see ``Gate.update``."""
    if not isinstance(gate.detector, GoenM):
        raise UsageError(
            "Only gates of Gate.fit can be updated. This one has the calibration head that "
            "goen run trains: run it again with the new images."
        )

    def stream(images: Images | None, role: str) -> BatchStream | None:
        if images is None:
            return None
        return replace(as_stream(images, role, batch_size, asked), kind=gate.inputs)

    asked: AskedInputs = "images" if isinstance(gate.inputs, ImageInputs) else "tensors"
    kinds = ood_streams(ood, batch_size, asked)
    if train is None and held_out is None and not kinds:
        raise UsageError("Nothing to update: give train, held_out or ood images.")
    sets = _NewSets(
        stream(train, "train"),
        stream(held_out, "held_out"),
        {kind: replace(s, kind=gate.inputs) for kind, s in kinds.items()},
    )
    _check(gate, gate.detector, sets)
    return _updated(gate, gate.detector, sets)


def _updated(gate: Gate, old: GoenM, sets: _NewSets) -> tuple[Gate, Change]:
    new = GoenM.from_state(old.config(), old.state())
    splits = _splits(gate.facts)
    facts = dict(gate.facts)
    network = gate.network
    if isinstance(network, Precomputed):
        network = copy.deepcopy(network)  # more training images move the means of its classes
    with evaluating(network):
        if sets.train is not None:
            bank = old.bank
            added = read_training(
                network, bank.layers, sets.train, first_row=bank.num_seen, rows=bank.rows
            )
            added.add_to(new, network)
            splits[f"train, added {len(splits)}"] = added.describe()
        held_out_pass: CuePass | None = None
        if sets.held_out is not None:
            held_out_pass = measure_cues(network, sets.held_out, old, new)
        ood = {kind: measure_cues(network, s, old, new) for kind, s in sets.ood.items()}
    require_disjoint_streams(sets.by_role())
    hashes = _new_hashes(gate, sets)
    splits |= {
        f"ood {kind}": describe_stream(sets.ood[kind], len(found)) for kind, found in ood.items()
    }

    kept = {} if sets.train is not None else old.ood_cues_
    old_ood = {**old.ood_cues_, **{kind: found.cues[0] for kind, found in ood.items()}}
    new_ood = {**kept, **{kind: found.cues[1] for kind, found in ood.items()}}
    if held_out_pass is not None and sets.held_out is not None:
        warn_of_copies(sets.held_out, stacklevel=5)
        held_out = calibrate(new, held_out_pass, new_ood, gate.false_alarm_rate)
        splits["held_out"] = describe_stream(sets.held_out, len(held_out_pass))
        facts["held_out_accuracy"] = held_out_pass.accuracy
        _, rows = split_held_out(len(held_out_pass), gate.false_alarm_rate)
        old_id = held_out_pass.cues[0][rows]
    else:
        held_out = _recalibrated(new, old, gate.held_out, new_ood, ood)
        old_id = torch.tensor(held_out.require_cues())
    if sets.train is not None:
        facts.pop("train_accuracy", None)  # of the earlier images alone
    facts["splits"] = splits
    updated = replace(
        gate,
        network=network,
        detector=new,
        held_out=held_out,
        facts=facts,
        image_hashes=hashes,
        evidence=None,
        compiled=None,  # what it was compared by are the old scores
    )
    new_id = torch.tensor(updated.held_out.require_cues())
    change = Change(
        _numbers(old, gate.threshold, old_id, old_ood),
        _numbers(new, updated.threshold, new_id, new_ood),
    )
    return updated, change


def _check(gate: Gate, detector: GoenM, sets: _NewSets) -> None:
    if sets.train is not None and sets.held_out is None:
        raise UsageError(
            "More training images change every distance, and with it the scores of the held-out "
            "images: give held_out again, the same images or more."
        )
    missing = [kind for kind in detector.ood_cues_ if kind not in sets.ood]
    if sets.train is not None and missing:
        raise UsageError(
            "More training images change every distance, also those of the OOD images: give each "
            f"kind again. Missing: {', '.join(missing)}."
        )
    roles = sets.by_role()
    require_disjoint_streams(roles)
    _new_hashes(gate, sets)
    for role, stream in roles.items():
        for other, split in _splits(gate.facts).items():
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


def _new_hashes(gate: Gate, sets: _NewSets) -> dict[str, Hashes]:
    """The hashes of the updated gate; a LeakError if an image would have two roles.

    Of an iterable only the images read so far are known: called before the pass and after it.
    """
    roles = {role: image_hashes(stream.digests()) for role, stream in sets.by_role().items()}
    for role, new in roles.items():
        for other, old in gate.image_hashes.items():
            if other == role or (other in roles and other != "train"):
                continue  # replaced by this update, or more of the same
            shared = len(np.intersect1d(new, old))
            if shared:
                raise LeakError(
                    f"{shared} images of {role} are in the gate's {other} already, pixel for "
                    "pixel. The training, held-out and OOD sets must be disjoint."
                )
    merged = {**gate.image_hashes, **roles}
    if "train" in roles and "train" in gate.image_hashes:
        merged["train"] = np.union1d(gate.image_hashes["train"], roles["train"])
    return merged


def _splits(facts: JsonObject) -> dict[str, JsonValue]:
    splits = facts.get("splits", {})
    return dict(splits) if isinstance(splits, Mapping) else {}


def _recalibrated(
    new: GoenM,
    old: GoenM,
    held_out: HeldOut,
    ood_cues: Mapping[str, Tensor],
    passes: Mapping[str, CuePass],
) -> HeldOut:
    """The same distances and the same held-out images under new weights."""
    if held_out.cues is None or old.id_cues_ is None:
        raise UsageError("This gate was saved without its held-out cues: give held_out again.")
    new.calibrate(old.id_cues_, ood_cues)
    return HeldOut.from_cues(
        new,
        torch.tensor(held_out.cues),
        labels=None if held_out.labels is None else torch.tensor(held_out.labels),
        rounding=max(found.rounding(new) for found in passes.values()),
    )


def _numbers(
    detector: GoenM, threshold: float, id_cues: Tensor, ood_cues: Mapping[str, Tensor]
) -> dict[str, float]:
    """Shares flagged and AUROCs of a detector with its threshold."""
    from goen.metrics import ood_metrics  # slow to import, and a gate that only scores needs none

    scores = detector.score_cues(id_cues)
    numbers = {"flagged/held_out": float((scores > threshold).double().mean())}
    for kind, cues in ood_cues.items():
        other = detector.score_cues(cues)
        numbers[f"auroc/{kind}"] = ood_metrics(scores.numpy(), other.numpy()).auroc
        numbers[f"flagged/{kind}"] = float((other > threshold).double().mean())
    return numbers
