"""A gate where a detector of pytorch-ood is expected."""

from typing import Any, Self, final

import torch
from torch import Tensor

from goen.scoring import Gate


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
