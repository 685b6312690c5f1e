"""Damaged states of every detector: refused when they are loaded, or they score."""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from goen.detectors import (
    FDBD,
    KNN,
    CueDetector,
    Goen,
    GoenM,
    Mahalanobis,
    MaSF,
    MultilayerMahalanobis,
    ReAct,
    RelativeMahalanobis,
    SimpleDetector,
    TemperatureScaling,
    ViM,
)
from goen.detectors.calibration_head import HeadConfig
from goen.errors import ArtifactError, UsageError
from goen.outputs import Outputs
from tests.fuzz.case import Broken, Fuzzer
from tests.fuzz.gates import check_message
from tests.fuzz.tensor_damage import change_tensors

_CLASSES, _WIDTH = 3, 6
_LAYERS = ("early", "middle", "z")


def _outputs(seed: int, count: int, weight: Tensor) -> tuple[Outputs, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % _CLASSES
    rows = 3 * torch.eye(_CLASSES, _WIDTH)[labels] + torch.rand(count, _WIDTH, generator=draw)
    features = {"early": rows[:, :2], "middle": rows.square(), "z": rows}
    return Outputs(rows @ weight.T, features), labels


class DetectorFuzzer(Fuzzer):
    """Damages what a detector saves of itself."""

    name = "detectors"
    seconds = 5.0
    megabytes = 500.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        weight = torch.eye(_CLASSES, _WIDTH) + 0.1
        linear = {"weight": weight, "bias": torch.zeros(_CLASSES)}
        self._makers: tuple[Callable[[], SimpleDetector], ...] = (
            lambda: KNN(k=3),
            Mahalanobis,
            lambda: RelativeMahalanobis(normalise=True),
            lambda: MultilayerMahalanobis(feature=_LAYERS),
            lambda: MaSF(feature=_LAYERS),
            lambda: ViM(**linear),
            lambda: ReAct(**linear),
            lambda: FDBD(weight=weight),
            TemperatureScaling,
        )
        train, labels = _outputs(0, 60, weight)
        held_out, _ = _outputs(1, 30, weight)
        ood = {"one": _outputs(2, 30, -weight)[0]}
        self._outputs, _ = _outputs(3, 12, weight)
        self._fitted = [make().fit(train, labels) for make in self._makers]
        self._with_cues: list[CueDetector] = [
            GoenM().fit(train, labels, held_out=held_out, ood=ood),
            Goen(head=HeadConfig(epochs=2)).fit(train, labels, held_out=held_out, ood=ood),
        ]

    def run(self, draw: random.Random) -> str:
        if draw.random() < 0.4:
            return self._run_with_cues(draw)
        number = draw.randrange(len(self._makers))
        detector = self._makers[number]()
        tensors = _copied(self._fitted[number].state())
        self.what = f"{type(detector).__name__}: {change_tensors(draw, tensors)}"
        try:
            detector.load_state(tensors)
        except ArtifactError as error:
            check_message(error)
            return "refused"
        return self._score(detector)

    def _run_with_cues(self, draw: random.Random) -> str:
        detector = draw.choice(self._with_cues)
        tensors = _copied(detector.state())
        self.what = f"{type(detector).__name__}: {change_tensors(draw, tensors)}"
        try:
            loaded = type(detector).from_state(detector.config(), tensors)
            loaded.check_network(_CLASSES, {"z": _WIDTH})
        except (ArtifactError, ValueError) as error:
            check_message(error)
            return "refused"
        except Exception as error:
            if type(error).__module__ == "goen.errors":  # goen.load makes an ArtifactError of it
                return "refused"
            raise
        return self._score(loaded)

    def _score(self, detector: SimpleDetector | CueDetector) -> str:
        try:
            scores = detector.score(self._outputs)
        except UsageError:  # scores that are not finite; a gate flags those images
            return "not finite"
        if scores.shape != (len(self._outputs),) or not bool(torch.isfinite(scores).all()):
            raise Broken(f"the scores are {scores}")
        return "scored"


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return load(save({name: tensor.contiguous() for name, tensor in state.items()}))
