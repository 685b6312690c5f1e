"""Damaged gates: goen.load refuses them with an ArtifactError, or they predict."""

import hashlib
import json
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

import goen
from goen.batch import Inputs
from goen.data import ImageSet
from goen.data.input_spec import ImageInputs
from goen.detectors import Goen, GoenM
from goen.detectors.calibration_head import HeadConfig
from goen.errors import ArtifactError
from goen.extraction import extract
from goen.features.preprocess import Preprocess
from goen.gate import Gate, HeldOut
from goen.models import NetworkConfig, ResNet18
from goen.models.ensemble import LogitEnsemble
from goen.models.flip_averaging import FlipAveraged
from goen.models.half_precision import round_to_half
from goen.models.seeding import seeded
from tests.fuzz.case import Broken, Fuzzer
from tests.fuzz.json_damage import damaged_json
from tests.fuzz.tensor_damage import damaged_tensors

_SIDE = 8
_CLASSES = ("a", "b", "c")


class TinyNet(nn.Module):
    """A user's own model."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.late = nn.Sequential(nn.Conv2d(4, 5, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(5, len(_CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.late(self.body(x)).mean((2, 3)))
        return out


def _images(seed: int, count: int) -> ImageSet:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3, _SIDE, _SIDE), dtype=np.uint8)
    labels = np.arange(count) % len(_CLASSES)
    pixels[np.arange(count), labels] = 255  # a class is a colour
    return ImageSet(f"images {seed}", pixels, labels, _CLASSES)


def tiny_gate() -> Gate:
    """goen-m on goen's own network."""
    with seeded(0):  # with other weights no cue may separate the OOD images
        network = ResNet18(NetworkConfig(num_classes=3, width=2)).eval()
    kinds = {"one": _images(3, 20), "other": _images(4, 20)}
    return Gate.fit(
        network,
        _images(0, 60),
        _images(1, 60),
        layers=("layer2", "layer4"),
        layout="channels_first",
        ood=kinds,
        false_alarm_rate=0.2,
        flip_averaging=True,
    )


def _with_head() -> Gate:
    """As goen run makes it."""
    network = ResNet18(NetworkConfig(num_classes=3, width=2, classifier="dropout")).eval()
    train, held_out = _images(0, 60), extract(network, _images(1, 60))
    detector = Goen(feature="z", head=HeadConfig(epochs=2)).fit(
        extract(network, train),
        torch.from_numpy(train.labels),
        held_out=held_out,
        ood={"one": extract(network, _images(3, 20))},
    )
    scores = HeldOut.from_cues(detector, detector.cues(held_out), rounding=0.0)
    facts = {"splits": {"train": train.to_json()}, "recipe": {"width": 2}}
    return Gate(network, detector, scores, 0.05, _CLASSES, ImageInputs(3, _SIDE, _SIDE), facts)


def _ensemble() -> Gate:
    """As the bundled one: two networks in half precision, averaged over flips."""
    members = [ResNet18(NetworkConfig(num_classes=3, width=2)).eval() for _ in range(2)]
    for member in members:
        round_to_half(member)
    network = FlipAveraged(LogitEnsemble(members)).eval()
    train, held_out = _images(0, 60), extract(network, _images(1, 60))
    detector = GoenM(("layer2", "layer4"), logit_cues=("entropy", "energy"))
    detector.fit(extract(network, train), torch.from_numpy(train.labels), held_out=held_out)
    scores = HeldOut.from_cues(detector, detector.cues(held_out), rounding=0.0)
    return Gate(network, detector, scores, 0.05, _CLASSES, ImageInputs(3, _SIDE, _SIDE))


def _with_own_model() -> Gate:
    gate = Gate.fit(
        TinyNet().eval(),
        _images(0, 60),
        _images(1, 90),
        layers=("body", "late"),
        layout="channels_first",
        preprocess=Preprocess((0.5,), (0.25,), (10, 12)),
        false_alarm_rate=0.2,
    )
    # Each class gets enough held-out images, whatever the untrained model predicts.
    labels = np.arange(len(gate.held_out)) % len(_CLASSES)
    return replace(gate, held_out=replace(gate.held_out, labels=labels)).with_per_class()


def _of_features() -> Gate:
    rng = np.random.default_rng(2)
    train, held_out = rng.normal(size=(60, 5)), rng.normal(size=(90, 5))
    labels = np.arange(60) % len(_CLASSES)
    return Gate.fit_outputs(
        {"first": train, "second": train[:, :3]},
        labels,
        {"first": held_out, "second": held_out[:, :3]},
        false_alarm_rate=0.2,
        classes=_CLASSES,
    )


_KINDS: tuple[tuple[Callable[[], Gate], bool], ...] = (
    (tiny_gate, False),
    (_with_head, False),
    (_with_own_model, True),
    (_of_features, False),
    (_ensemble, False),
)


class GateFuzzer(Fuzzer):
    """Damages the manifest, the tensors or both of five small gates."""

    name = "gates"
    # goen.io.limits: two images through the largest network that it lets in.
    seconds = 10.0
    megabytes = 1500.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._bases = []
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a classifier that was not trained
            for number, (make, own_model) in enumerate(_KINDS):
                torch.manual_seed(0)
                make().save(folder / f"base-{number}")
                self._bases.append((folder / f"base-{number}", own_model))

    def run(self, draw: random.Random) -> str:
        base, own_model = draw.choice(self._bases)
        case = self.folder / "case"
        case.mkdir(exist_ok=True)
        manifest = json.loads((base / "manifest.json").read_text())
        tensors = (base / "tensors.safetensors").read_bytes()
        self.what = base.name
        if draw.random() < 0.5:
            tensors, how = damaged_tensors(draw, tensors)
            self.what += f": {how}"
            if draw.random() < 0.95:  # as a forger would
                manifest["tensors_sha256"] = hashlib.sha256(tensors).hexdigest()
        text = json.dumps(manifest, indent=2).encode()
        if draw.random() < 0.55 or self.what == base.name:
            text, how = damaged_json(draw, manifest)
            self.what += f": {how}"
        (case / "manifest.json").write_bytes(text)
        (case / "tensors.safetensors").write_bytes(tensors)
        try:
            gate = goen.load(case, model=TinyNet() if own_model else None)
        except ArtifactError as error:
            check_message(error)
            return "refused"
        check_gate(gate)
        if draw.random() < 0.2:
            gate.save(self.folder / "again", overwrite=True)
            check_gate(goen.load(self.folder / "again", model=TinyNet() if own_model else None))
        return "loaded"


def check_message(error: Exception) -> None:
    """The message is a short sentence, and no allocation failed on the way to it."""
    text = str(error)
    if not 20 < len(text) < 2000:
        raise Broken(f"a message of {len(text)} characters") from error
    text.encode("utf-8")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "allocate" in str(cause):
            raise Broken(f"it tried to allocate: {cause}") from error
        cause = cause.__cause__ or cause.__context__


def check_gate(gate: Gate) -> None:
    """The gate predicts, and its numbers are such as a prediction has."""
    count = 2
    inputs: Inputs = gate.inputs.pattern()
    if isinstance(gate.inputs, ImageInputs):
        channels, height, width = gate.inputs.channels, gate.inputs.height, gate.inputs.width
        count = 4 if height * width <= 2**16 else 1
        shape = (count, channels, height, width)
        inputs = torch.from_numpy(np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8))
        inputs[0] = 0
    found = gate.predict(inputs)
    for name, values in {"p_value": found.p_value, "confidence": found.confidence}.items():
        if not ((values >= 0) & (values <= 1)).all():
            raise Broken(f"{name} is {values}")
    if np.isnan(found.score).any() or not (found.is_ood | np.isfinite(found.score)).all():
        raise Broken(f"the score is {found.score}")
    if len(found.classes) <= int(found.label.max()):
        raise Broken(f"the label is {found.label}")
    for i in range(count):
        found.explain(i)
    repr(gate)
