"""A detector, and outputs for it, for tests of what all detectors share."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from goen.detectors import (
    KNN,
    ClassMixture,
    Detector,
    Goen,
    Mahalanobis,
    PytorchOod,
    RelativeMahalanobis,
)
from goen.outputs import Outputs

CLASSES, WIDTH = 3, 4


class Centre(Detector):
    """The distance to the mean of the training rows."""

    name = "centre"
    mean_: Tensor

    def __init__(self, *, feature: str | None = None, power: float = 1.0) -> None:
        self.feature = feature
        self.power = power

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.mean_ = self.feature_rows(outputs).mean(dim=0)

    def _score(self, outputs: Outputs) -> Tensor:
        return (self.feature_rows(outputs) - self.mean_).norm(dim=1) ** self.power


class LogitFree:
    """With pytorch-ood's methods for features."""

    def fit_features(self, x: Tensor, y: Tensor) -> None:
        self.centre = x.mean(0)

    def predict_features(self, x: Tensor) -> Tensor:
        return (x - self.centre).norm(dim=1)

    def __repr__(self) -> str:
        return "LogitFree()"


def outputs(names: str, seed: int = 0, count: int = 60) -> Outputs:
    """Features of these names, each of other values, and logits."""
    labels = torch.arange(count) % CLASSES
    features = {}
    for name in names.split():
        g = torch.Generator().manual_seed(1000 * seed + ord(name))
        features[name] = 4 * torch.eye(WIDTH)[labels] + torch.randn(count, WIDTH, generator=g)
    g = torch.Generator().manual_seed(seed)
    logits = 4 * torch.eye(CLASSES)[labels] + torch.randn(count, CLASSES, generator=g)
    return Outputs(logits, features)


LABELS = torch.arange(60) % CLASSES

# Every detector that measures one feature, the last one if not told otherwise.
MEASURING: dict[str, Callable[..., Detector]] = {
    "template": Centre,
    "mahalanobis": Mahalanobis,
    "relative mahalanobis": RelativeMahalanobis,
    "knn": partial(KNN, k=5),
    "goen": Goen,
    "class mixture": ClassMixture,
    "pytorch-ood": lambda **given: PytorchOod(LogitFree(), **given),
}
measuring = pytest.mark.parametrize("make", MEASURING.values(), ids=MEASURING.keys())
