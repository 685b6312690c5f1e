"""NCI: how near the centred feature is to the weights of its predicted class."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.functional.class_means import mean_row
from goen.outputs import Outputs


@final
class NCI(Detector):
    r"""Minus the centred feature's component along its class's weights; high for OOD.

    :math:`-\left(w_{\hat y} \cdot \frac{x - \mu}{\lVert x - \mu \rVert} + \alpha
    \lVert x \rVert_1\right)`, with :math:`\mu` the mean of all training rows, w the weights of
    the outputs' linear classifier, and :math:`\hat y` the class of the largest logit. Under neural
    collapse, centred ID features point along the weights of their class.

    Args:
        alpha: the weight of the feature's length, at least 0.

    Paper: Liu and Qin 2025, "Detecting Out-of-Distribution through the Lens of Neural Collapse",
    CVPR 2025, arXiv 2311.01479. Departs from the paper: alpha is 0 by default. The paper and
    OpenOOD choose it with OOD images, and its effect depends on the scale of the features. An input
    at the mean itself has a component of 0.

    It fails on networks that are far from neural collapse (few epochs), and, with alpha above 0,
    where OOD features are longer than ID features.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> z = torch.tensor([[3.0, 0.0], [-3.0, 0.0]])
        >>> weight = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])
        >>> classifier = LinearClassifier(weight, torch.zeros(2), "z")
        >>> outputs = Outputs(z @ weight.T, {"z": z}, classifier=classifier)
        >>> nci = NCI().fit(outputs, torch.tensor([0, 1]))
        >>> query = torch.tensor([[3.0, 4.0]])
        >>> nci.score(Outputs(query @ weight.T, {"z": query}))
        tensor([-1.2000], dtype=torch.float64)
    """

    name: ClassVar[str] = "nci"
    needs_classifier = True
    weight_: Tensor
    mean_: Tensor

    def __init__(self, *, alpha: float = 0.0) -> None:
        self.alpha = alpha
        check_number("alpha", alpha, at_least=0)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.mean_ = mean_row(self.feature_rows(outputs))
        self.weight_, _ = self.classifier(outputs)

    def _expected(self) -> Mapping[str, Expected]:
        width = self.features_width
        return {"weight": Expected((self.num_classes_, width)), "mean": Expected((width,))}

    def _score(self, outputs: Outputs) -> Tensor:
        rows = self.feature_rows(outputs).to(torch.float64)
        centred = rows - self.mean_
        own = self.weight_.index_select(0, outputs.logits.argmax(dim=1))
        length: Tensor = torch.linalg.vector_norm(centred, dim=1)
        along = (own * centred).sum(dim=1) / length.clamp_min(torch.finfo(torch.float64).tiny)
        return -(along + self.alpha * rows.abs().sum(dim=1))
