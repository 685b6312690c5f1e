"""Adapters: a gate as an estimator of scikit-learn, and as a detector of pytorch-ood."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from goen.data.inputs import Images
from goen.detectors import Detector
from goen.errors import NotFittedError, UsageError
from goen.features.preprocess import Preprocessing
from goen.functional.ranking import Floats
from goen.gate import Gate


# scikit-learn has no types, and calls its arrays X.
# ruff: noqa: N803
@final
@dataclass(eq=False, repr=False)
class GateEstimator(BaseEstimator):  # type: ignore[misc]
    """A gate as an outlier detector of scikit-learn.

    ``predict`` returns 1 for ID images and -1 for OOD images, as in scikit-learn.
    ``decision_function`` is negative for images that are flagged, and ``score_samples`` is lower
    for more OOD images: the opposite sign of goen's score.

    Args:
        model: a classifier, trained already; only the gate is fitted.
        layers: as for ``Gate.fit``.
        false_alarm_rate: the share of ID images that may be flagged.
        held_out_share: the share of the images given to ``fit`` that is held out to standardise the
            cues and to set the threshold. The model must not have been trained on these: if
            possible, give ``fit`` images that the model was not trained on.
        image_shape: (3, H, W) if images are rows ``(N, 3·H·W)``, as many transformers need them.
        preprocess: as for ``Gate.fit``.
        ood: as for ``Gate.fit``.
        detector: as for ``Gate.fit``.
    """

    model: nn.Module
    layers: str | Sequence[str] = "auto"
    _: KW_ONLY
    false_alarm_rate: float = 0.05
    held_out_share: float = 0.3
    image_shape: tuple[int, int, int] | None = None
    preprocess: Preprocessing | None = None
    ood: Images | Mapping[str, Images] | None = None
    detector: str | Detector = "goen_m"

    def fit(self, X: NDArray[Any], y: NDArray[np.int64] | None = None) -> Self:
        """Fit the gate; ``y`` are the class numbers of the images ``X``."""
        if y is None:
            raise UsageError("Fitting a gate needs labels: fit(images, labels).")
        if not 0 < self.held_out_share < 1:
            raise UsageError(f"held_out_share lies between 0 and 1, got {self.held_out_share}.")
        images, labels = self._images(X), np.asarray(y)
        order = np.random.RandomState(0).permutation(len(images))
        held_out, train = np.split(order, [round(self.held_out_share * len(order))])
        self.gate_ = Gate.fit(
            self.model,
            (images[train], labels[train]),
            (images[held_out], labels[held_out]),
            detector=self.detector,
            layers=self.layers,
            ood=self.ood,
            false_alarm_rate=self.false_alarm_rate,
            preprocess=self.preprocess,
        )
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[np.int64]:
        """1 for ID images, -1 for OOD images, as in scikit-learn, ``(N,)``."""
        return np.where(self._gate().predict(self._images(X)).is_ood, -1, 1)

    def decision_function(self, X: NDArray[Any]) -> Floats:
        """Threshold minus score, ``(N,)``: below 0 for images that are flagged."""
        return self._gate().threshold - self._gate().predict(self._images(X)).score

    def score_samples(self, X: NDArray[Any]) -> Floats:
        """Minus the score, ``(N,)``: lower for more OOD images, as in scikit-learn."""
        return -self._gate().predict(self._images(X)).score

    def _gate(self) -> Gate:
        if not hasattr(self, "gate_"):
            raise NotFittedError("This GateEstimator is not fitted. Call fit(images, labels).")
        return self.gate_

    def _images(self, X: NDArray[Any]) -> NDArray[Any]:
        images = np.asarray(X)
        return images if self.image_shape is None else images.reshape(-1, *self.image_shape)


@final
@dataclass(frozen=True)
class GateDetector:
    """A gate as a detector of pytorch-ood: ``predict(x)`` returns scores, higher for more OOD.

    Args:
        gate: fitted. ``detector.gate.predict(x).is_ood`` are its decisions.
    """

    gate: Gate

    def fit(self, *_: object, **__: object) -> Self:
        """Does nothing: a gate is fitted by ``Gate.fit``."""
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Scores ``(N,)`` float64 of images ``(N, 3, H, W)``, uint8 or floats in [0, 1]."""
        return torch.from_numpy(self.gate.predict(x).score)

    def __call__(self, x: Tensor) -> Tensor:
        return self.predict(x)
