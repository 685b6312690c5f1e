"""Trained networks and their outputs for image sets, each computed once for all studies."""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from logging import getLogger
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from goen.data.imageset import ImageSet
from goen.extraction import BATCH_SIZE, stream
from goen.io.artifacts import reading_stage
from goen.io.files import whole_file
from goen.io.json_files import json_rows
from goen.io.manifest import JsonObject, JsonValue
from goen.io.stages import Stages
from goen.io.tensors import Tensors, read_tensors
from goen.models import Backbone, NetworkConfig, new_network
from goen.models.seeding import seeded
from goen.outputs import Outputs
from goen.training import EpochRow, TrainingConfig, train_backbone
from goen.training.distributed import num_processes

_log = getLogger(__name__)

EpochRecord: TypeAlias = Mapping[str, JsonValue]
"""One epoch of a training as a JSON object."""

# To be raised when a change of the code changes the result of a stage.
_TRAINING_REVISION = 1
_OUTPUTS_REVISION = 1


class Member(Protocol):
    """A network of an experiment, wherever it comes from; see ``Trained``."""

    @property
    def network(self) -> nn.Module: ...
    @property
    def key(self) -> str: ...
    @property
    def epochs(self) -> Sequence[EpochRecord]: ...
    @property
    def trained_on(self) -> tuple[ImageSet, ...]: ...


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network in evaluation mode.

    Attributes:
        network: itself.
        key: of the stage that trained it: its identity.
        epochs: one record per epoch.
        trained_on: the training images, and those used for early stopping or as outliers.
    """

    network: Backbone
    key: str
    epochs: list[EpochRecord]
    trained_on: tuple[ImageSet, ...]


def train(
    network: NetworkConfig,
    training: TrainingConfig,
    images: ImageSet,
    validation: ImageSet,
    stages: Stages,
    device: torch.device,
    outliers: Sequence[ImageSet] = (),
) -> Trained:
    """The trained network of this configuration; training is skipped if a study has done it."""

    def make(result: Path, work: Path) -> None:
        trained, rows = train_backbone(
            network,
            training,
            images,
            validation,
            outliers=_joined(outliers) if outliers else None,
            checkpoint=work / "checkpoint.safetensors",
            device=device,
            on_epoch=_note_epoch,
        )
        _write_network(result, trained.state_dict(), [asdict(row) for row in rows])

    inputs = _inputs(network, training, images, validation, device)
    if outliers:
        inputs = {**inputs, "outliers": [part.fingerprint for part in outliers]}
    folder = stages.run("backbone", inputs, make)
    with seeded(0):  # the weights that it begins with are drawn
        model = new_network(network)
    with reading_stage(folder):
        weights = read_tensors(folder / "network.safetensors")
        weights.check_like(model.state_dict(), largest=None)  # a training may have diverged
        model.load_state_dict(weights)
        epochs = json_rows(folder / "training.jsonl", lambda row: row.content)
    stopped_on = () if training.patience is None else (validation,)
    used = (images, *stopped_on, *outliers)
    return Trained(model.to(device).eval(), folder.name, epochs, used)


def _joined(parts: Sequence[ImageSet]) -> ImageSet:
    """The images of all sets as one, without their labels."""
    pixels = np.concatenate([part.read() for part in parts])
    labels = np.zeros(len(pixels), np.int64)
    return ImageSet("+".join(part.name for part in parts), pixels, labels, ("outlier",))


def adopt(
    network: NetworkConfig,
    training: TrainingConfig,
    images: ImageSet,
    validation: ImageSet,
    stages: Stages,
    weights: Mapping[str, Tensor],
    epochs: list[EpochRecord],
) -> None:
    """Keep a network that was trained elsewhere on the CPU, so that ``train`` finds it."""
    inputs = _inputs(network, training, images, validation, torch.device("cpu"))
    stages.run("backbone", inputs, lambda result, _: _write_network(result, weights, epochs))


def _inputs(
    network: NetworkConfig,
    training: TrainingConfig,
    images: ImageSet,
    validation: ImageSet,
    device: torch.device,
) -> JsonObject:
    """All that a training depends on."""
    inputs: JsonObject = {
        "revision": _TRAINING_REVISION,
        "network": network.to_json(),
        "training": training.to_json(),
        "train": images.fingerprint,
        "validation": validation.fingerprint,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    # With several processes it is another training.
    return inputs if num_processes() == 1 else {**inputs, "processes": num_processes()}


def _write_network(folder: Path, weights: Mapping[str, Tensor], epochs: list[EpochRecord]) -> None:
    plain = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
    save_file(plain, folder / "network.safetensors")
    write_epochs(folder / "training.jsonl", epochs)


def outputs(
    network: nn.Module,
    key: str,
    images: ImageSet,
    stages: Stages,
    *,
    features: Collection[str],
    batch_size: int = BATCH_SIZE,
) -> tuple[Outputs, float]:
    """The network's outputs for the set, and the seconds of its pass; cached on disk.

    Args:
        network: returns ``Outputs``.
        key: its identity: networks with the same key return the same outputs.
        images: the set.
        stages: the cache.
        features: the features to keep.
        batch_size: images per forward pass.
    """
    inputs: JsonObject = {
        "revision": _OUTPUTS_REVISION,
        "network": key,
        "images": images.fingerprint,
        "features": sorted(features),
    }

    def make(result: Path, work: Path) -> None:
        started = time.perf_counter()
        batches = stream(network, images, batch_size=batch_size)
        whole = Outputs.concatenate(o.keep(features) for o in batches)
        seconds = time.perf_counter() - started
        tensors = {"logits": whole.logits} | {f"feature.{k}": v for k, v in whole.features.items()}
        if whole.uncertainty is not None:
            tensors["uncertainty"] = whole.uncertainty
        tensors["seconds"] = torch.tensor(seconds, dtype=torch.float64)
        plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(plain, result / "outputs.safetensors")

    folder = stages.run("outputs", inputs, make, about=images.name)
    with reading_stage(folder):
        return _read_outputs(read_tensors(folder / "outputs.safetensors"), len(images), features)


def _read_outputs(tensors: Tensors, count: int, features: Collection[str]) -> tuple[Outputs, float]:
    """The outputs of so many images, with these features, and the seconds of their pass.

    Their numbers may be NaN: detectors refuse those.
    """
    known = ["logits", "uncertainty", "seconds", *(f"feature.{name}" for name in features)]
    tensors.check_names(known)
    seconds = tensors.floats("seconds", (), low=0.0).item()
    logits = tensors.of_shape("logits", (count, "classes"), torch.float32)
    # In the requested order, which a file does not keep: the last feature is a detector's default.
    named = {
        name: tensors.of_shape(f"feature.{name}", (count, "width"), torch.float32)
        for name in features
    }
    uncertainty = None
    if "uncertainty" in tensors:
        uncertainty = tensors.of_shape("uncertainty", (count,), torch.float64)
    return Outputs(logits, named, uncertainty), seconds


def write_epochs(path: Path, rows: list[EpochRecord]) -> None:
    """Records as JSON lines, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _note_epoch(row: EpochRow) -> None:
    _log.info(
        f"epoch {row.epoch + 1:>3}  loss {row.loss:.3f}  accuracy {row.accuracy:.1%}  "
        f"validation {row.validation_accuracy:.2%}  {row.seconds:.1f} s"
    )
