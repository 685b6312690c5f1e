"""The largest logit."""

from typing import ClassVar, final

import torch
from torch import Tensor

from goen.detectors._base import Detector
from goen.outputs import Outputs


@final
class MaxLogit(Detector):
    """Minus the largest logit; high for OOD.

    Paper: Hendrycks et al. 2022, "Scaling Out-of-Distribution Detection for Real-World Settings".
    Departs from the paper: nothing.

    Example:
        >>> MaxLogit().score(Outputs(torch.tensor([[1.0, 3.0], [0.0, -2.0]]), {}))
        tensor([-3., -0.], dtype=torch.float64)
    """

    name: ClassVar[str] = "max_logit"
    needs_fit = False

    def _score(self, outputs: Outputs) -> Tensor:
        return -outputs.logits.to(torch.float64).amax(dim=1)
