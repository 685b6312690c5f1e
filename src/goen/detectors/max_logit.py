"""The largest logit."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from goen.detectors._base import SimpleDetector
from goen.outputs import Outputs


@final
class MaxLogit(SimpleDetector):
    """Minus the largest logit; high for OOD.

    Paper: Hendrycks et al. 2022, "Scaling Out-of-Distribution Detection for Real-World Settings".
    Departs from the paper: nothing.

    Example:
        >>> MaxLogit().score(Outputs(torch.tensor([[1.0, 3.0], [0.0, -2.0]]), {}))
        tensor([-3., -0.], dtype=torch.float64)
    """

    needs_fit = False

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        return {}

    def _measure(self, outputs: Outputs) -> Tensor:
        return -outputs.logits.to(torch.float64).amax(dim=1)
