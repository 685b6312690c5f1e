"""VRA-P: the energy of features without their small entries, and with large ones clipped."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.errors import UsageError
from goen.functional._rows import floats
from goen.functional.logits import energy_score, linear_logits
from goen.functional.shaping import activation_percentiles
from goen.outputs import Outputs


@final
class VRA(Detector):
    r"""The energy of the logits after small entries were zeroed, large ones clipped; high for OOD.

    :math:`-\log \sum_c e^{w_c \cdot v(x) + b_c}`, where v sets the entries of the pooled feature
    below :math:`t_1` to 0 and those above :math:`t_2` to :math:`t_2`. Both thresholds are
    percentiles of all entries of all training rows, and w and b those of the outputs' linear
    classifier.

    Args:
        low: the percentile :math:`t_1`, from 0, below ``high``.
        high: the percentile :math:`t_2`, at most 100.

    Paper: Xu et al. 2023, "VRA: Variational Rectified Activation for Out-of-distribution
    Detection", NeurIPS 2023, arXiv 2302.11716 (VRA-P). Departs from the paper: nothing on the
    pooled feature. 60 and 90 are its authors' percentiles for CIFAR-10. OpenOOD and pytorch-ood
    implement another function: they raise small entries to :math:`t_1`.

    It is made for features behind a ReLU and fails where small entries tell classes apart, or OOD
    features are longer. A fit warns of negative features.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> z = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
        >>> classifier = LinearClassifier(torch.eye(2), torch.zeros(2), "z")
        >>> outputs = Outputs(z, {"z": z}, classifier=classifier)
        >>> vra = VRA(low=50, high=100).fit(outputs, torch.tensor([0, 1, 0, 1]))
        >>> vra.score(outputs[1:2])  # of (0, 0)
        tensor([-0.6931], dtype=torch.float64)
    """

    name: ClassVar[str] = "vra"
    needs_classifier = True
    made_for_relu = True
    weight_: Tensor
    bias_: Tensor
    thresholds_: Tensor

    def __init__(self, *, low: float = 60.0, high: float = 90.0) -> None:
        self.low = low
        self.high = high
        check_number("low", low, at_least=0, below=100)
        check_number("high", high, above=0, at_most=100)
        if low >= high:
            raise UsageError(f"low lies below high, got low={low} and high={high}.")

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.weight_, self.bias_ = self.classifier(outputs)
        rows = self.feature_rows(outputs)
        found = activation_percentiles(rows, self.low, self.high)
        self.thresholds_ = torch.tensor(found, dtype=torch.float64, device=rows.device)

    def _expected(self) -> Mapping[str, Expected]:
        return {
            "weight": Expected((self.num_classes_, self.features_width)),
            "bias": Expected((self.num_classes_,)),
            "thresholds": Expected((2,)),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        rows = floats(self.feature_rows(outputs))
        low, high = self.thresholds_.to(rows.dtype).unbind()
        shaped = torch.minimum(rows, high).masked_fill_(rows < low, 0.0)
        return energy_score(linear_logits(shaped, self.weight_, self.bias_))
