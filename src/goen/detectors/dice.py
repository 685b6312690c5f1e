"""DICE: the energy of logits to which only important weights contribute."""

from collections.abc import Mapping
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._bank import ROWS, sample_rows
from goen.detectors._base import Detector, Expected
from goen.functional._rows import floats
from goen.functional.class_means import mean_row
from goen.functional.logits import energy_score, linear_logits
from goen.functional.shaping import harmless_percentile
from goen.outputs import Outputs


@final
class DICE(Detector):
    r"""The energy of the logits of a classifier without its unimportant weights; high for OOD.

    :math:`-\log \sum_c e^{(m_c \circ w_c) \cdot x + b_c}`, w and b those of the outputs' linear
    classifier. The mask m keeps the weights whose mean contribution :math:`w_{ci} \mu_i` is above
    a percentile of all contributions, of all classes together; :math:`\mu` is the mean of all
    training rows.

    Args:
        percentile: of the weights that are removed, from 0, below 100. By default the highest of 5,
            10, ... 95 that leaves 99 % of the predictions of training images as they are.

    Paper: Sun and Li 2022, "DICE: Leveraging Sparsification for Out-of-Distribution Detection",
    ECCV 2022, arXiv 2111.09805. Departs from the paper: the default percentile, which the paper
    chooses with OOD images (90 for CIFAR-10, 70 for ImageNet).

    It is made for features behind a ReLU and average pooling, and fails on others: with negative
    features a negative weight contributes to its class. A fit warns of them.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> z = torch.tensor([[1.0, 1.0]])
        >>> classifier = LinearClassifier(torch.tensor([[2.0, -3.0]]), torch.ones(1), "z")
        >>> outputs = Outputs(z @ classifier.weight.T + 1, {"z": z}, classifier=classifier)
        >>> dice = DICE(percentile=50).fit(outputs, torch.tensor([0]))
        >>> dice.weight_.tolist(), dice.score(outputs).tolist()
        ([[2.0, 0.0]], [-3.0])
    """

    name: ClassVar[str] = "dice"
    needs_classifier = True
    made_for_relu = True
    weight_: Tensor
    """With the unimportant ones set to 0."""
    bias_: Tensor

    def __init__(self, *, percentile: float | None = None) -> None:
        self.percentile = percentile
        if percentile is not None:
            check_number("percentile", percentile, at_least=0, below=100)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        weight, self.bias_ = self.classifier(outputs)
        contributions = weight * mean_row(self.feature_rows(outputs))
        percentile = self.percentile
        if percentile is None:
            sample = outputs[sample_rows(labels, self.num_classes_, ROWS)]
            rows = floats(self.feature_rows(sample))
            percentile = harmless_percentile(
                lambda q: linear_logits(rows, _masked(weight, contributions, q), self.bias_).argmax(
                    dim=1
                ),
                linear_logits(rows, weight, self.bias_).argmax(dim=1),
            )
        self.weight_ = _masked(weight, contributions, percentile)

    def _expected(self) -> Mapping[str, Expected]:
        return {
            "weight": Expected((self.num_classes_, self.features_width)),
            "bias": Expected((self.num_classes_,)),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        rows = floats(self.feature_rows(outputs))
        return energy_score(linear_logits(rows, self.weight_, self.bias_))


def _masked(weight: Tensor, contributions: Tensor, percentile: float) -> Tensor:
    threshold = float(np.percentile(contributions.cpu().numpy(), percentile))
    return torch.where(contributions > threshold, weight, 0.0)
