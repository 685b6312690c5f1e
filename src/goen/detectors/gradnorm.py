"""GradNorm: the length of a gradient, without a backward pass."""

from typing import ClassVar, final

import torch
from torch import Tensor

from goen.detectors._base import Detector
from goen.functional.logits import check_several_classes
from goen.outputs import Outputs


@final
class GradNorm(Detector):
    r"""Minus the length of the last layer's gradient for a uniform target; high for OOD.

    :math:`-\lVert x \rVert_1 \cdot \lVert p - 1/C \rVert_1`, which is minus the L1 norm of the
    gradient, by the weights of the last linear layer, of the cross-entropy between the uniform
    distribution and the softmax p. The gradient is the outer product of p - 1/C and the feature x
    that this layer reads, so that its norm is the product of the two.

    Args:
        feature: the feature that the last linear layer reads; the last if not given.

    Paper: Huang, Geng and Li 2021, "On the Importance of Gradients for Detecting Distributional
    Shifts in the Wild", arXiv 2110.00218. Departs from the paper: nothing (temperature 1; the
    gradient in closed form). OpenOOD's value is C times as large.

    It is made for features behind a ReLU and average pooling, and fails, or ranks the wrong way
    round, where OOD features are longer than ID features: small networks, transformers. A fit warns
    of negative features. Nothing is learnt from the training images.

    Example:
        >>> z, logits = torch.tensor([[3.0, 1.0]]), torch.tensor([[0.75, 0.25]]).log()
        >>> outputs = Outputs(logits, {"z": z})  # (3 + 1) times (1/4 + 1/4)
        >>> GradNorm().fit(outputs, torch.tensor([0])).score(outputs).round(decimals=4)
        tensor([-2.], dtype=torch.float64)
    """

    name: ClassVar[str] = "gradnorm"
    made_for_relu = True

    def __init__(self, *, feature: str | None = None) -> None:
        self.feature = feature

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        check_several_classes(outputs.logits)

    def _score(self, outputs: Outputs) -> Tensor:
        probabilities = torch.softmax(outputs.logits.to(torch.float64), dim=1)
        by_logits = (probabilities - 1 / probabilities.shape[1]).abs().sum(dim=1)
        return -by_logits * self.feature_rows(outputs).to(torch.float64).abs().sum(dim=1)
