"""ReAct: the energy of clipped features."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.functional._rows import floats
from goen.functional.logits import energy_score, linear_logits
from goen.functional.shaping import activation_percentiles
from goen.outputs import Outputs


@final
class ReAct(Detector):
    r"""The energy of the logits after large features were clipped; high for OOD.

    :math:`-\log \sum_c e^{w_c \cdot \min(x, t) + b_c}`, with the threshold t a percentile of all
    activations of all training rows, and w and b those of the outputs' linear classifier. OOD
    images owe their large logits to a few very large activations.

    Args:
        percentile: above 0, at most 100.

    Paper: Sun, Guo and Li 2021, "ReAct: Out-of-distribution Detection With Rectified Activations".
    Departs from the paper: nothing.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> classifier = LinearClassifier(torch.eye(2), torch.zeros(2), "z")
        >>> z = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
        >>> outputs = Outputs(z, {"z": z}, classifier=classifier)
        >>> react = ReAct(percentile=50).fit(outputs, torch.tensor([0, 1, 0, 1]))
        >>> react.threshold_.item()
        3.5
    """

    name: ClassVar[str] = "react"
    needs_classifier = True
    weight_: Tensor
    bias_: Tensor
    threshold_: Tensor
    """What larger activations are clipped to."""

    def __init__(self, *, percentile: float = 90.0) -> None:
        self.percentile = percentile
        check_number("percentile", percentile, above=0, at_most=100)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        rows = self.feature_rows(outputs)
        (threshold,) = activation_percentiles(rows, self.percentile)
        self.threshold_ = torch.tensor(threshold, dtype=torch.float64, device=rows.device)
        self.weight_, self.bias_ = self.classifier(outputs)

    def _expected(self) -> Mapping[str, Expected]:
        return {
            "threshold": Expected(()),
            "weight": Expected((self.num_classes_, self.features_width)),
            "bias": Expected((self.num_classes_,)),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        clipped = torch.minimum(floats(self.feature_rows(outputs)), self.threshold_)
        return energy_score(linear_logits(clipped, self.weight_, self.bias_))
