"""Damaged states of every detector: refused when they are loaded, or they score."""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from goen.detectors import DETECTORS, KNN, Detector, Flow, Goen, GoenM, MaSF, MultilayerMahalanobis
from goen.detectors.calibration_head import HeadConfig
from goen.errors import FitError, UsageError
from goen.outputs import LinearClassifier, Outputs
from tests.extras import MISSING
from tests.fuzz.case import Broken, Fuzzer
from tests.fuzz.gates import check_message
from tests.fuzz.tensor_damage import change_tensors

_CLASSES, _WIDTH = 3, 6
_LAYERS = ("early", "middle", "z")
# Those whose defaults are for more images or layers than there are here.
_SMALL: dict[str, Callable[[], Detector]] = {
    "knn": lambda: KNN(k=3),
    "mm_pp": lambda: MultilayerMahalanobis(feature=_LAYERS),
    "masf": lambda: MaSF(feature=_LAYERS),
    "goen": lambda: Goen(head=HeadConfig(epochs=2)),
    "flow": lambda: Flow(hidden=4),
}


def _outputs(seed: int, count: int, sign: int = 1) -> tuple[Outputs, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % _CLASSES
    rows = 3 * torch.eye(_CLASSES, _WIDTH)[labels] + torch.rand(count, _WIDTH, generator=draw)
    features = {"early": rows[:, :2], "middle": rows.square(), "z": rows}
    weight = sign * (torch.eye(_CLASSES, _WIDTH) + 0.1)
    classifier = LinearClassifier(weight, torch.zeros(_CLASSES), "z")
    logits = classifier.logits(rows)
    return Outputs(logits, features, classifier=classifier, labels=labels), labels


class DetectorFuzzer(Fuzzer):
    """Damages what a detector saves of itself."""

    name = "detectors"
    seconds = 5.0
    megabytes = 500.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        train, labels = _outputs(0, 60)
        held_out, _ = _outputs(1, 30)
        ood = {"one": _outputs(2, 30, sign=-1)[0]}
        self._outputs, _ = _outputs(3, 12)
        makers = {name: _SMALL.get(name, make) for name, make in DETECTORS.items()}
        if "zuko" in MISSING:
            del makers["flow"]
        plain = [make() for make in makers.values() if make().needs_fit]
        with_ood: list[Detector] = [GoenM(), _SMALL["goen"]()]
        self._fitted = [
            *(detector.fit(train, labels, held_out=held_out) for detector in plain),
            *(detector.fit(train, labels, held_out=held_out, ood=ood) for detector in with_ood),
        ]

    def run(self, draw: random.Random) -> str:
        fitted = draw.choice(self._fitted)
        tensors = _copied(fitted.state())
        self.what = f"{fitted}: {change_tensors(draw, tensors)}"
        loaded = type(fitted).from_settings(fitted.settings())
        try:
            loaded.load_state(tensors, fitted.widths_ or {}, fitted.num_classes_)
        except (ValueError, FitError) as error:  # goen.load makes an ArtifactError of it
            check_message(error)
            return "refused"
        return self._score(loaded)

    def _score(self, detector: Detector) -> str:
        try:
            scores = detector.score(self._outputs)
        except UsageError:  # scores that are not finite; a gate flags those images
            return "not finite"
        if scores.shape != (len(self._outputs),) or not bool(torch.isfinite(scores).all()):
            raise Broken(f"the scores are {scores}")
        return "scored"


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return load(save({name: tensor.contiguous() for name, tensor in state.items()}))
