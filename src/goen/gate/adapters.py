"""Adapters: a gate as an estimator of scikit-learn, and as a detector of pytorch-ood."""

from collections.abc import Mapping, Sequence
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from goen.errors import NotFittedError, UsageError
from goen.gate import Gate
from goen.gate.prediction import Floats
from goen.models.tapping.preprocess import Preprocessing


# scikit-learn has no types, and calls its arrays X.
# ruff: noqa: N803
@final
class GateEstimator(BaseEstimator):  # type: ignore[misc]
    """Says of each image 1 (known) or −1 (strange), with scikit-learn's words and signs.

    ``decision_function`` is negative where ``predict`` says −1, ``score_samples`` is higher for
    known images: scikit-learn's signs, the opposite of goen's.

    Args:
        model: a classifier, trained already; only the gate is fitted.
        layers: as for ``Gate.fit``.
        false_alarm_rate: the share of known images that may be called strange.
        held_out_share: of what ``fit`` is given, to give cues their scale and the threshold. The
            model must not have been trained on it: give ``fit`` images it has not seen if you can.
        image_shape: (3, H, W) if images come as rows ``(N, 3·H·W)``, as pipelines like them.
        preprocess: as for ``Gate.fit``.
        ood: as for ``Gate.fit``.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[str],
        *,
        false_alarm_rate: float = 0.05,
        held_out_share: float = 0.3,
        image_shape: tuple[int, int, int] | None = None,
        preprocess: Preprocessing | None = None,
        ood: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.layers = layers
        self.false_alarm_rate = false_alarm_rate
        self.held_out_share = held_out_share
        self.image_shape = image_shape
        self.preprocess = preprocess
        self.ood = ood

    def fit(self, X: NDArray[Any], y: NDArray[np.int64] | None = None) -> Self:
        """Fit the gate; ``y`` are the class numbers of the images ``X``."""
        if y is None:
            raise UsageError("A gate is fitted with labels: fit(images, labels).")
        if not 0 < self.held_out_share < 1:
            raise UsageError(f"held_out_share lies between 0 and 1, got {self.held_out_share}.")
        images, labels = self._images(X), np.asarray(y)
        order = np.random.RandomState(0).permutation(len(images))
        held_out, train = np.split(order, [round(self.held_out_share * len(order))])
        self.gate_ = Gate.fit(
            self.model,
            (images[train], labels[train]),
            (images[held_out], labels[held_out]),
            layers=self.layers,
            ood=self.ood,
            false_alarm_rate=self.false_alarm_rate,
            preprocess=self.preprocess,
        )
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[np.int64]:
        """1 for known images, −1 for strange ones, ``(N,)``."""
        return np.where(self._gate().predict(self._images(X)).is_ood, -1, 1)

    def decision_function(self, X: NDArray[Any]) -> Floats:
        """Threshold minus score, ``(N,)``: below 0 for strange images."""
        return self._gate().threshold - self._gate().predict(self._images(X)).score

    def score_samples(self, X: NDArray[Any]) -> Floats:
        """The score with scikit-learn's sign, ``(N,)``: lower for strange images."""
        return -self._gate().predict(self._images(X)).score

    def _gate(self) -> Gate:
        if not hasattr(self, "gate_"):
            raise NotFittedError("This GateEstimator is not fitted. Call fit(images, labels).")
        return self.gate_

    def _images(self, X: NDArray[Any]) -> NDArray[Any]:
        images = np.asarray(X)
        return images if self.image_shape is None else images.reshape(-1, *self.image_shape)


@final
class GateDetector:
    """``predict(x)`` gives outlier scores as pytorch-ood does: larger means more OOD.

    Args:
        gate: fitted. Its threshold is not lost: ``detector.gate.predict(x).is_ood`` decides.
    """

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def fit(self, *_: Any, **__: Any) -> Self:
        """Nothing to do: a gate is fitted by ``Gate.fit``."""
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Scores ``(N,)`` float64 of images ``(N, 3, H, W)``, uint8 or floats in [0, 1]."""
        return torch.from_numpy(self.gate.predict(x).score)

    def __call__(self, x: Tensor) -> Tensor:
        return self.predict(x)
