"""OptFS: features weighted by how much activations of their size contribute to ID predictions."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.errors import FitError
from goen.functional._rows import blocks, check_finite_for_fit
from goen.functional.shaping import activation_percentiles
from goen.outputs import Outputs

# The range of activations that is divided into bins; others are set to 0.
_LOW, _HIGH = 0.1, 99.9


@final
class OptFS(Detector):
    r"""Minus the predicted class's logit of optimally shaped features; high for OOD.

    :math:`-\sum_i \theta(x_i) \, w_{\hat y i} x_i`, w the weights of the outputs' linear
    classifier without its bias, :math:`\hat y` the class of the largest logit of the image as it
    is. The function :math:`\theta` is constant within bins of equal width between the 0.1st and the
    99.9th percentile of all activations of all training rows, and 0 outside of them. In bin k it is
    proportional to the mean over training rows of :math:`\sum_{i: x_i \in k} w_{\hat y i} x_i`;
    all together have length 1. Of all such functions of that length, it has the largest mean logit
    on the training rows: no OOD images are needed.

    Args:
        bins: how many.

    Paper: Zhao et al. 2024, "Towards Optimal Feature-Shaping Methods for Out-of-Distribution
    Detection", ICLR 2024, arXiv 2402.00865. Departs from the paper: the length of theta, which
    changes no ranking.

    It fails on networks whose logits are not larger for ID images, and with few training images,
    whose rare large activations have noisy weights.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> z = torch.tensor([[0.0, 1.0], [2.0, 4.0]])
        >>> classifier = LinearClassifier(torch.tensor([[1.0, 1.0]]), torch.zeros(1), "z")
        >>> outputs = Outputs(z.sum(1, keepdim=True), {"z": z}, classifier=classifier)
        >>> optfs = OptFS(bins=2).fit(outputs, torch.tensor([0, 0]))
        >>> optfs.theta_  # activations 1 against 2; those of 0 and 4 lie outside
        tensor([0.4472, 0.8944], dtype=torch.float64)
    """

    name: ClassVar[str] = "optfs"
    needs_classifier = True
    weight_: Tensor
    edges_: Tensor
    theta_: Tensor

    def __init__(self, *, bins: int = 100) -> None:
        self.bins = bins
        check_number("bins", bins, whole=True, at_least=1)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        check_finite_for_fit(outputs.logits, "logit")
        self.weight_, _ = self.classifier(outputs)
        rows = self.feature_rows(outputs)
        low, high = activation_percentiles(rows, _LOW, _HIGH)
        if not low < high:
            raise FitError(
                f"Nearly all activations of the {len(rows)} training rows are {low:.3g}, so they "
                "cannot be divided into bins. Give more rows, or check the features."
            )
        edges = torch.linspace(low, high, self.bins + 1, dtype=torch.float64, device="cpu")
        self.edges_ = edges.to(rows.device)
        sums = torch.zeros(self.bins + 2, dtype=torch.float64, device=rows.device)
        for block in blocks(len(rows)):
            parts, place = self._contributions(rows[block], outputs.logits[block])
            sums.index_add_(0, place.flatten(), parts.flatten())
        theta = sums[1:-1]
        length = float(torch.linalg.vector_norm(theta))
        if length == 0:
            raise FitError("No activation contributes to a prediction: all weights are 0.")
        self.theta_ = theta / length

    def _contributions(self, rows: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """What each entry adds to the largest logit, and its bin; 0 and bins + 1 are outside."""
        wide = rows.to(torch.float64)
        own = self.weight_.index_select(0, logits.argmax(dim=1))
        return own * wide, torch.bucketize(wide, self.edges_)

    def _expected(self) -> Mapping[str, Expected]:
        return {
            "weight": Expected((self.num_classes_, self.features_width)),
            "edges": Expected((self.bins + 1,)),
            "theta": Expected((self.bins,), -1 - 1e-6, 1 + 1e-6),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        parts, place = self._contributions(self.feature_rows(outputs), outputs.logits)
        outside = self.theta_.new_zeros(1)
        theta = torch.cat([outside, self.theta_, outside])
        return -(parts * theta[place]).sum(dim=1)
