"""Saving gates and loading them: a folder of tensors and a manifest, never code."""

from collections.abc import Mapping
from logging import getLogger
from pathlib import Path

import numpy as np
import torch
from torch import nn

from goen.data.inputs import Hashes
from goen.detectors import CueDetector, Goen, GoenM
from goen.errors import ArtifactError, GoenError
from goen.functional import conformal
from goen.gate._inputs import FIELDS as INPUT_FIELDS
from goen.gate._inputs import check_inputs, inputs_manifest, read_inputs
from goen.gate._network import (
    Supplied,
    build_network,
    network_manifest,
    network_tensors,
    own_size,
)
from goen.gate.bundled import bundled_folder, bundled_gates
from goen.gate.gate import Gate
from goen.gate.held_out import HeldOut
from goen.libraries.opened import OpenedModel
from goen.models.placement import full_precision
from goen.models.tapping.preprocess import Preprocessing
from goen.runs import artifacts
from goen.runs.manifest import JsonObject, Manifest
from goen.runs.tensors import Tensors

_log = getLogger(__name__)

_DETECTORS: Mapping[str, type[CueDetector]] = {"goen": Goen, "goen-m": GoenM}
_INTERVAL = "of_this_gate_90_percent"
_HELD_OUT = ("scores", "labels", "cues")
_FIELDS = (
    *artifacts.FIELDS,
    "network",
    "scorer",
    "classes",
    "false_alarm_rate",
    "per_class",
    "threshold",
    "guarantee",
    "image_hashes",
    "facts",
    *INPUT_FIELDS,
)
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


def save_gate(gate: Gate, folder: Path) -> None:
    """Write the gate as a folder, whole or not at all."""
    check_inputs(gate.inputs, *own_size(gate.network))
    tensors = network_tensors(gate.network, gate.inputs)
    tensors |= {f"scorer.{name}": value for name, value in gate.detector.state().items()}
    held_out = gate.held_out
    for name in _HELD_OUT:
        values = getattr(held_out, name)
        if values is not None:
            tensors[f"held_out_{name}"] = torch.tensor(values)
    for number, hashes in enumerate(gate.image_hashes.values()):
        tensors[f"image_hashes.{number}"] = torch.tensor(hashes)
    manifest: JsonObject = {
        "network": network_manifest(gate.network),
        "scorer": {"kind": gate.detector.kind, **gate.detector.config()},
        "classes": list(gate.classes),
        **inputs_manifest(gate.inputs),
        "false_alarm_rate": gate.false_alarm_rate,
        "per_class": gate.per_class,
        "threshold": gate.threshold,
        "guarantee": _guarantee(gate),
        "image_hashes": list(gate.image_hashes),
        "facts": dict(gate.facts),
    }
    artifacts.save_artifact(folder, "gate", tensors, manifest)


def _guarantee(gate: Gate) -> JsonObject:
    """The expected false-alarm rate and an interval for the rate of this gate; for each class if
    the rate is guaranteed per class."""

    def with_images(count: int) -> JsonObject:
        low, mean, high = conformal.false_alarm_interval(count, gate.false_alarm_rate)
        return {
            "held_out_images": count,
            "expected_false_alarm_rate": mean,
            _INTERVAL: [low, high],
        }

    counts = [with_images(count) for count in _guaranteed_by(gate)]
    return {"by_class": counts} if gate.per_class else counts[0]


def _guaranteed_by(gate: Gate) -> list[int]:
    """The number of held-out images; of each class if the rate is guaranteed per class."""
    if not gate.per_class or gate.held_out.labels is None:
        return [len(gate.held_out)]
    counts = np.bincount(gate.held_out.labels, minlength=len(gate.classes))
    return [int(count) for count in counts]


def load(
    folder: Path | str,
    model: nn.Module | OpenedModel | None = None,
    preprocess: Preprocessing | None = None,
) -> Gate:
    """The gate that was saved in this folder or in the folder of a run, or a bundled gate.

    Args:
        folder: of the gate, or of a run; or, as a string, the name of a bundled gate, such as
            ``"cifar10"``, which takes precedence over a folder of that name; a folder in the
            current one is ``"./NAME"``, and a ``Path`` is never a name.
        model: for a gate of ``Gate.fit``: the model, freshly built by your own code. The saved
            weights are loaded into it. No code is ever loaded from the folder. A gate with goen's
            own network needs no model. What ``goen.open_model`` returns is a model, too.
        preprocess: if the gate was fitted with a function of your own, that function.

    Raises:
        ArtifactError: there is no gate, it is damaged or of another version, or the model is
            missing, a different one, or not needed.
    """
    path = gate_folder(folder)
    try:
        tensors, manifest = artifacts.load_artifact(path, "gate")
    except ArtifactError as error:
        if isinstance(folder, Path) or path.exists() or not bundled_gates():
            raise
        known = ", ".join(bundled_gates())
        raise ArtifactError(f"{error} Or name a bundled gate: {known}.") from error
    inner = model.model if isinstance(model, OpenedModel) else model
    try:
        with full_precision():
            return _rebuilt(tensors, manifest, inner, preprocess)
    except ArtifactError:
        raise
    except _WRONG as error:
        reason = str(error).removesuffix(".")
        short = reason if len(reason) <= 500 else f"{reason[:500]}…"  # it may quote the file
        raise ArtifactError(
            f"{path} is not a gate that this version of goen can load: {short}. Save it again."
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

    A text that is the name of a bundled gate is that gate, whatever lies in the current folder; a
    folder of the same name is ``"./NAME"`` or a ``Path``.
    """
    path = Path(gate)
    own = bundled_folder(gate) if isinstance(gate, str) else None
    if own is not None:
        if path.is_dir():
            _log.warning("%s is the bundled gate; the folder of that name is ./%s.", gate, gate)
        return own
    if (path / "results.jsonl").is_file() and (path / "gate").is_dir():
        return path / "gate"
    return path


def _rebuilt(
    tensors: Tensors, manifest: Manifest, model: nn.Module | None, preprocess: Preprocessing | None
) -> Gate:
    """The gate, checked field by field and tensor by tensor; what costs most comes last."""
    manifest.check_names(_FIELDS)
    inputs = read_inputs(manifest)
    classes = manifest.texts("classes")
    facts = manifest.part("facts")
    _check_facts(facts)
    settings = manifest.part("scorer")
    kind = settings.text("kind")
    if kind not in _DETECTORS:
        raise ValueError(f"its detector is of unknown kind {kind[:80]!r}")
    detector = _DETECTORS[kind].from_state(settings.content, tensors.part("scorer."))
    held_out = _held_out(tensors, len(classes), len(detector.cue_names))
    hashes = _image_hashes(tensors, manifest)
    known = [name for name in tensors if name.startswith(("network.", "scorer."))]
    known += [f"image_hashes.{number}" for number in range(len(hashes))]
    tensors.check_names([*known, "probe", *(f"held_out_{name}" for name in _HELD_OUT)])
    network_settings = manifest.part("network")
    network, outputs = build_network(
        network_settings,
        tensors,
        inputs,
        Supplied(model, preprocess, _model_source(facts, network_settings)),
    )
    count = outputs.logits.shape[1]
    if len(classes) != count:
        raise ValueError(f"{len(classes)} class names for {count} classes")
    detector.check_network(count, {k: v.shape[1] for k, v in outputs.features.items()})
    gate = Gate(
        network=network,
        detector=detector,
        held_out=held_out,
        false_alarm_rate=manifest.number("false_alarm_rate"),
        classes=classes,
        inputs=inputs,
        facts=facts.content,
        per_class=manifest.flag("per_class"),
        image_hashes=hashes,
    )
    if gate.threshold != manifest.number("threshold"):
        raise ValueError(f"its threshold is {gate.threshold}, not {manifest.number('threshold')}")
    _check_guarantee(manifest.part("guarantee"), gate)
    return gate


def _model_source(facts: Manifest, network: Manifest) -> str:
    """Where the code of the model is."""
    for manifest, name in ((facts, "factory"), (network, "model")):
        if name in manifest:
            return manifest.text(name)[:200]
    return "goen run"


def _held_out(tensors: Tensors, num_classes: int, num_cues: int) -> HeldOut:
    scores = tensors.floats("held_out_scores", ("images",))
    count = len(scores)
    labels = cues = None
    if "held_out_labels" in tensors:
        labels = tensors.integers("held_out_labels", (count,), low=0, high=num_classes - 1).numpy()
    if "held_out_cues" in tensors:
        cues = tensors.floats("held_out_cues", (count, num_cues)).numpy()
    return HeldOut(scores.numpy(), labels, cues)


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


def _check_guarantee(guarantee: Manifest, gate: Gate) -> None:
    """What is written for people about the false-alarm rate belongs to the held-out images."""
    counts = _guaranteed_by(gate)
    if gate.per_class:
        guarantee.check_names(["by_class"])
    parts = guarantee.parts("by_class") if gate.per_class else [guarantee]
    if len(parts) != len(counts):
        raise ValueError(f"its guarantee should be of {len(counts)} classes, got {len(parts)}")
    for part, count in zip(parts, counts, strict=True):
        part.check_names(["held_out_images", "expected_false_alarm_rate", _INTERVAL])
        ends = part.numbers(_INTERVAL)
        fits = len(ends) == 2 and 0 <= ends[0] <= ends[1] <= 1
        mean = part.number("expected_false_alarm_rate")
        # It is the largest k / (n + 1) that is not above the rate.
        step = 1 / (count + 1) + 1e-12
        fits = fits and gate.false_alarm_rate - step < mean <= gate.false_alarm_rate
        if part.integer("held_out_images") != count or not fits:
            raise ValueError(
                f"its guarantee should be that of {count} held-out images for a false-alarm rate "
                f"of {gate.false_alarm_rate:g}, got {str(part.content)[:200]}"
            )


def _check_facts(facts: Manifest) -> None:
    """The fields that goen reads have their types; others may be there for people."""
    for name in ("factory", "model"):
        if name in facts:
            facts.text(name)
    for name in ("train_accuracy", "held_out_accuracy"):
        if name in facts and not 0 <= facts.number(name) <= 1:
            raise ValueError(f"its facts.{name} should be from 0 to 1, got {facts.number(name)}")
    splits = facts.part("splits") if "splits" in facts else Manifest({})
    for role in splits.content:
        split = splits.part(role)
        split.text("name")
        split.integer("images")
        if "fingerprint" in split:
            split.text("fingerprint")
