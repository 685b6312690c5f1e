"""Saving gates and loading them: a folder of tensors and a manifest, never code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
from torch import nn

from goen.checks import check_choice
from goen.data.input_spec import ImageInputs, InputSpec
from goen.data.inputs import Hashes
from goen.detectors import load_detector
from goen.detectors.registry import detector_manifest
from goen.errors import ArtifactError, GoenError, UsageError, did_you_mean
from goen.features.loaded_model import LoadedModel
from goen.features.preprocess import Preprocessing
from goen.functional import conformal
from goen.functional.image_properties import property_names
from goen.gate.base import BaseGate
from goen.gate.bundled import bundled_folder, bundled_gates
from goen.gate.error_rate import ACCEPT_BY, AcceptBy, ErrorRate
from goen.gate.storage.inputs import FIELDS as INPUT_FIELDS
from goen.gate.storage.inputs import check_inputs, inputs_manifest, read_inputs
from goen.gate.storage.network import (
    Supplied,
    build_network,
    network_manifest,
    network_tensors,
)
from goen.gate.threshold import HeldOut
from goen.io import artifacts
from goen.io.manifest import JsonObject, Manifest
from goen.io.tensors import Tensors
from goen.models.placement import full_precision

_IMAGES, _GROUPS = "held_out_images", "held_out_groups"
_MEAN = "expected_false_alarm_rate"
_INTERVAL = "of_this_gate_90_percent"
_HELD_OUT = ("scores", "labels", "cues", "groups", "confidence", "wrong", "properties")
_FIELDS = (
    *artifacts.FIELDS,
    "network",
    "detector",
    "classes",
    "false_alarm_rate",
    "per_class",
    "error_rate",
    "threshold",
    "guarantee",
    "image_hashes",
    "metadata",
    *INPUT_FIELDS,
)
AnyGate = TypeVar("AnyGate", bound=BaseGate)
# What damaged or forged content makes torch, NumPy, a user's model or goen itself raise.
_WRONG = (
    GoenError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


@full_precision()
def save_gate(gate: BaseGate, folder: Path | str, *, overwrite: bool = False) -> None:
    """Write the gate as a folder, whole or not at all.

    Args:
        folder: becomes the gate.
        overwrite: replace a folder that goen made, if one is there.

    Raises:
        UsageError: something is there, or the detector cannot be saved.
    """
    if not gate.detector.saved:
        raise UsageError(
            f"{gate.detector} keeps its state in another library, so a gate with it cannot be "
            "saved or exported. Fit it again where it is used, or take a detector of goen."
        )
    network = network_manifest(gate.network)
    check_inputs(gate.inputs, Manifest(network))
    tensors = network_tensors(gate.network, gate.inputs)
    tensors |= {f"detector.{name}": value for name, value in gate.detector.state().items()}
    held_out = gate.held_out
    for name in _HELD_OUT:
        values = getattr(held_out, name)
        if values is not None:
            tensors[f"held_out_{name}"] = torch.tensor(values)
    for number, hashes in enumerate(gate.image_hashes.values()):
        tensors[f"image_hashes.{number}"] = torch.tensor(hashes)
    manifest: JsonObject = {
        "network": network,
        "detector": detector_manifest(gate.detector),
        "classes": list(gate.classes),
        **inputs_manifest(gate.inputs),
        "false_alarm_rate": gate.false_alarm_rate,
        "per_class": gate.per_class,
        **({} if gate.error_rate is None else {"error_rate": asdict(gate.error_rate)}),
        "threshold": gate.threshold,
        "guarantee": _guarantee(gate),
        "image_hashes": list(gate.image_hashes),
        "metadata": dict(gate.metadata),
    }
    artifacts.save_artifact(Path(folder), "gate", tensors, manifest, overwrite=overwrite)


def _guarantee(gate: BaseGate) -> JsonObject:
    """The expected false-alarm rate and an interval for the rate of this gate; for each class if
    the rate is guaranteed per class. Of images in groups the groups are counted."""

    def with_images(count: int) -> JsonObject:
        low, mean, high = conformal.false_alarm_interval(count, gate.false_alarm_rate)
        return {_counted(gate): count, _MEAN: mean, _INTERVAL: [low, high]}

    counts = [with_images(count) for count in gate.held_out_counts]
    return {"by_class": counts} if gate.per_class else counts[0]


def _counted(gate: BaseGate) -> str:
    """The field of the number that the guarantee rests on."""
    return _IMAGES if gate.held_out.groups is None else _GROUPS


def load_gate(
    make: Callable[..., AnyGate],
    folder: Path | str,
    model: nn.Module | LoadedModel | None = None,
    preprocess: Preprocessing | None = None,
) -> AnyGate:
    """The gate, as an object of ``make``; see ``goen.load``."""
    path = gate_folder(folder)
    try:
        tensors, manifest = artifacts.load_artifact(path, "gate")
    except ArtifactError as error:
        if isinstance(folder, Path) or path.exists() or not bundled_gates():
            raise
        known = ", ".join(bundled_gates())
        hint = did_you_mean(str(folder), bundled_gates())
        raise ArtifactError(f"{error} Or name a bundled gate: {known}.{hint}") from error
    inner = model.model if isinstance(model, LoadedModel) else model
    try:
        with full_precision():
            return _rebuilt(make, tensors, manifest, inner, preprocess)
    except ArtifactError:
        raise
    except _WRONG as error:
        reason = str(error).removesuffix(".")
        short = reason if len(reason) <= 500 else f"{reason[:500]}…"  # it may quote the file
        raise ArtifactError(
            f"{path} is not a gate that this version of goen can load: {short}. Fit it again."
        ) from error


def count_saved_classes(folder: Path | str) -> int:
    """Of the gate that ``load`` would load from here; only its manifest is read.

    Raises:
        ArtifactError: there is no gate, or it is damaged.
    """
    manifest = artifacts.read_manifest(gate_folder(folder), "gate")
    try:
        return len(manifest.texts("classes"))
    except ValueError as error:
        raise ArtifactError(f"{folder} is damaged: {error}. Save the gate again.") from error


def gate_folder(gate: Path | str) -> Path:
    """The folder that ``load`` reads: the given one, the ``gate/`` of a run, or a bundled one.

    A folder that exists comes before a bundled gate of the same name.
    """
    path = Path(gate)
    if not path.is_dir() and isinstance(gate, str):
        return bundled_folder(gate) or path
    if (path / "results.jsonl").is_file() and (path / "gate").is_dir():
        return path / "gate"
    return path


def _rebuilt(
    make: Callable[..., AnyGate],
    tensors: Tensors,
    manifest: Manifest,
    model: nn.Module | None,
    preprocess: Preprocessing | None,
) -> AnyGate:
    """The gate, checked field by field and tensor by tensor; what costs most comes last."""
    manifest.check_names(_FIELDS)
    inputs = read_inputs(manifest)
    classes = manifest.texts("classes")
    metadata = manifest.part("metadata")
    _check_metadata(metadata)
    detector = load_detector(manifest.part("detector"), tensors.part("detector."))
    held_out = _held_out(tensors, len(classes), len(detector.cue_names), inputs)
    hashes = _image_hashes(tensors, manifest)
    known = [name for name in tensors if name.startswith(("network.", "detector.", "new_classes."))]
    known += [f"image_hashes.{number}" for number in range(len(hashes))]
    tensors.check_names([*known, "probe", *(f"held_out_{name}" for name in _HELD_OUT)])
    settings = manifest.part("network")
    sources = ((metadata, "factory"), (settings, "model"))
    source = next((m.text(name)[:200] for m, name in sources if name in m), "goen run")
    supplied = Supplied(model, preprocess, source)
    network, outputs = build_network(settings, tensors, inputs, supplied)
    count = outputs.logits.shape[1]
    if len(classes) != count:
        raise ValueError(f"{len(classes)} class names for {count} classes")
    scores = detector.score(outputs)  # other features or classes are an error
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("its detector gives scores that are not finite")
    gate = make(
        network=network,
        detector=detector,
        held_out=held_out,
        false_alarm_rate=manifest.number("false_alarm_rate"),
        classes=classes,
        inputs=inputs,
        metadata=metadata.content,
        per_class=manifest.flag("per_class"),
        error_rate=_error_rate(manifest),
        image_hashes=hashes,
    )
    if gate.threshold != manifest.number("threshold"):
        raise ValueError(f"its threshold is {gate.threshold}, not {manifest.number('threshold')}")
    _check_guarantee(manifest.part("guarantee"), gate)
    return gate


def _held_out(tensors: Tensors, num_classes: int, num_cues: int, inputs: InputSpec) -> HeldOut:
    scores = tensors.floats("held_out_scores", ("images",))
    count = len(scores)
    labels = cues = groups = properties = None
    if "held_out_labels" in tensors:
        labels = tensors.integers("held_out_labels", (count,), low=0, high=num_classes - 1).numpy()
    if "held_out_cues" in tensors:
        cues = tensors.floats("held_out_cues", (count, num_cues)).numpy()
    if "held_out_groups" in tensors:
        groups = tensors.integers("held_out_groups", (count,), low=0, high=count - 1).numpy()
        if not count or len(np.unique(groups)) != groups.max() + 1:
            raise ValueError("its tensor held_out_groups should number the groups from 0")
    confidence = wrong = None
    if "held_out_confidence" in tensors:
        confidence = tensors.floats("held_out_confidence", (count,)).numpy()
    if "held_out_wrong" in tensors:
        wrong = tensors.of_shape("held_out_wrong", (count,), torch.bool).numpy()
    if "held_out_properties" in tensors:
        if not isinstance(inputs, ImageInputs):
            raise ValueError("its tensor held_out_properties is of images, and its inputs are none")
        width = len(property_names(inputs.channels))
        properties = tensors.floats("held_out_properties", (count, width)).numpy()
    return HeldOut(scores.numpy(), labels, cues, groups, confidence, wrong, properties)


def _error_rate(manifest: Manifest) -> ErrorRate | None:
    if "error_rate" not in manifest:
        return None
    part = manifest.part("error_rate")
    part.check_names([field.name for field in fields(ErrorRate)])
    by = part.text("by")
    check_choice("order of acceptance", by, ACCEPT_BY)
    return ErrorRate(part.number("rate"), part.number("confidence"), cast(AcceptBy, by))


def _image_hashes(tensors: Tensors, manifest: Manifest) -> dict[str, Hashes]:
    """By role; gates that were saved before there were hashes have none."""
    roles = manifest.texts("image_hashes") if "image_hashes" in manifest else ()
    if len({*roles}) < len(roles):
        raise ValueError(f"its image_hashes should name each role once, got {roles[:10]}")
    found = {}
    for number, role in enumerate(roles):
        name = f"image_hashes.{number}"
        found[role] = tensors.integers(name, ("images",)).numpy()
        if not (found[role][1:] > found[role][:-1]).all():
            raise ValueError(f"its tensor {name} should hold different hashes, sorted")
    return found


def _check_guarantee(guarantee: Manifest, gate: BaseGate) -> None:
    """What is written for people about the false-alarm rate belongs to the held-out images."""

    def numbers(whole: Manifest) -> list[list[float]]:
        parts = [whole]
        if gate.per_class:
            whole.check_names(["by_class"])
            parts = whole.parts("by_class")
        for part in parts:
            part.check_names([_counted(gate), _MEAN, _INTERVAL])
        return [
            [part.integer(_counted(gate)), part.number(_MEAN), *part.numbers(_INTERVAL)]
            for part in parts
        ]

    found, known = numbers(guarantee), numbers(Manifest(_guarantee(gate)))
    # Versions of SciPy may round differently.
    if [*map(len, found)] != [*map(len, known)] or not np.allclose(found, known, rtol=0, atol=1e-6):
        raise ValueError(
            f"its guarantee should be that of {gate.num_held_out} held-out images for a "
            f"false-alarm rate of {gate.false_alarm_rate:g}, got {str(guarantee.content)[:200]}"
        )


def _check_metadata(metadata: Manifest) -> None:
    """The fields that goen reads have their types; others may be there for people."""
    for name in ("factory", "model"):
        if name in metadata:
            metadata.text(name)
    for name in ("train_accuracy", "held_out_accuracy"):
        if name in metadata and not 0 <= metadata.number(name) <= 1:
            raise ValueError(
                f"its metadata.{name} should be from 0 to 1, got {metadata.number(name)}"
            )
    splits = metadata.part("splits") if "splits" in metadata else Manifest({})
    for role in splits.content:
        split = splits.part(role)
        split.text("name")
        split.integer("images")
        if "fingerprint" in split:
            split.text("fingerprint")
