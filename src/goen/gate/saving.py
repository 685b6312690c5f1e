"""Saving gates and loading them: a folder of tensors and a manifest, never code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from goen.data.inputs import Hashes
from goen.data.pictures import DECODING, RESIZE_FILTER
from goen.detectors import CueDetector, Goen, GoenM
from goen.errors import ArtifactError
from goen.functional import conformal
from goen.gate._network import Supplied, build_network, network_manifest, network_tensors, widths
from goen.gate.bundled import bundled_folder, bundled_gates
from goen.gate.gate import Gate
from goen.gate.held_out import HeldOut
from goen.models.tapping.preprocess import Preprocessing
from goen.runs import artifacts
from goen.runs.manifest import JsonObject, Manifest

_DETECTORS: Mapping[str, type[CueDetector]] = {"goen": Goen, "goen-m": GoenM}

PICTURES: JsonObject = {"decode": DECODING, "resize": RESIZE_FILTER}
"""How picture files become images for a gate; see ``goen.read_picture``."""


def save_gate(gate: Gate, folder: Path) -> None:
    """Write the gate as a folder, whole or not at all."""
    tensors = network_tensors(gate.network, gate.image_size)
    tensors |= {f"scorer.{name}": value for name, value in gate.detector.state().items()}
    held_out = gate.held_out
    arrays = {"scores": held_out.scores, "labels": held_out.labels, "cues": held_out.cues}
    for name, values in arrays.items():
        if values is not None:
            tensors[f"held_out_{name}"] = torch.tensor(values)
    for number, hashes in enumerate(gate.image_hashes.values()):
        tensors[f"image_hashes.{number}"] = torch.tensor(hashes)
    manifest: JsonObject = {
        "network": network_manifest(gate.network),
        "scorer": {"kind": gate.detector.kind, **gate.detector.config()},
        "classes": list(gate.classes),
        "image_size": list(gate.image_size),
        "pictures": PICTURES,
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
            "of_this_gate_90_percent": [low, high],
        }

    if not gate.per_class or gate.held_out.labels is None:
        return with_images(len(gate.held_out))
    counts = np.bincount(gate.held_out.labels, minlength=len(gate.classes))
    return {"by_class": [with_images(count) for count in counts.tolist()]}


def load(
    folder: Path | str, model: nn.Module | None = None, preprocess: Preprocessing | None = None
) -> Gate:
    """The gate that was saved in this folder or in the folder of a run, or a bundled gate.

    Args:
        folder: of the gate, or of a run; or, as a string, the name of a bundled gate, such as
            ``"cifar10-w16"``, which takes precedence over a folder of that name; a folder in the
            current one is ``"./NAME"``, and a ``Path`` is never a name.
        model: for a gate of ``Gate.fit``: the model, freshly built by your own code. The saved
            weights are loaded into it. No code is ever loaded from the folder. A gate with goen's
            own network needs no model.
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
    try:
        return _rebuilt(tensors, Manifest(manifest), model, preprocess)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ArtifactError(
            f"{path} is not a gate that this version of goen can load: {error}. Save it again."
        ) from error


def gate_folder(gate: Path | str) -> Path:
    """The folder that ``load`` reads: the given one, the ``gate/`` of a run, or a bundled one.

    A text that is the name of a bundled gate is that gate, whatever lies in the current folder; a
    folder of the same name is ``"./NAME"`` or a ``Path``.
    """
    own = bundled_folder(gate) if isinstance(gate, str) else None
    if own is not None:
        return own
    path = Path(gate)
    if (path / "results.jsonl").is_file() and (path / "gate").is_dir():
        return path / "gate"
    return path


def _rebuilt(
    tensors: Mapping[str, Tensor],
    manifest: Manifest,
    model: nn.Module | None,
    preprocess: Preprocessing | None,
) -> Gate:
    height, width = manifest.counts("image_size")
    _check_pictures(manifest)
    classes = manifest.texts("classes")
    facts = manifest.part("facts")
    network_settings = manifest.part("network")
    made_by = facts.content.get("factory") or network_settings.content.get("model") or "goen run"
    supplied = Supplied(model, preprocess, str(made_by))
    network = build_network(network_settings, tensors, (height, width), supplied)
    settings = manifest.part("scorer")
    kind = settings.text("kind")
    if kind not in _DETECTORS:
        raise ValueError(f"its detector is of unknown kind {kind!r}")
    state = artifacts.part(tensors, "scorer.")
    detector = _DETECTORS[kind].from_state(settings.content, state)
    count, feature_widths = widths(network, (height, width))
    if len(classes) != count:
        raise ValueError(f"{len(classes)} class names for {count} classes")
    detector.check_network(count, feature_widths)

    def array(name: str) -> NDArray[Any] | None:
        return tensors[name].numpy() if name in tensors else None

    gate = Gate(
        network=network,
        detector=detector,
        held_out=HeldOut(
            tensors["held_out_scores"].numpy(), array("held_out_labels"), array("held_out_cues")
        ),
        false_alarm_rate=manifest.number("false_alarm_rate"),
        classes=classes,
        image_size=(height, width),
        facts=facts.content,
        per_class=manifest.flag("per_class"),
        image_hashes=_image_hashes(tensors, manifest),
    )
    if gate.threshold != manifest.number("threshold"):
        raise ValueError(f"its threshold is {gate.threshold}, not {manifest.number('threshold')}")
    return gate


def _check_pictures(manifest: Manifest) -> None:
    """Refuse a gate whose pictures are read in another way; earlier gates do not say the way."""
    if "pictures" not in manifest:
        return
    for step, known in PICTURES.items():
        found = manifest.part("pictures").text(step)
        if found != known:
            raise ValueError(
                f"it wants pictures read in a way that is not known here ({step}: {found[:80]!r}, "
                f"expected {known!r}); a newer goen may know it"
            )


def _image_hashes(tensors: Mapping[str, Tensor], manifest: Manifest) -> dict[str, Hashes]:
    """By role; gates that were saved before there were hashes have none."""
    roles = manifest.texts("image_hashes") if "image_hashes" in manifest else ()
    return {role: tensors[f"image_hashes.{number}"].numpy() for number, role in enumerate(roles)}
