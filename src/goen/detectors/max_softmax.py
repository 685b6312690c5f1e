"""The largest softmax probability."""

from typing import ClassVar, final

from torch import Tensor

from goen.detectors._base import Detector
from goen.functional.logits import check_several_classes, max_softmax_score
from goen.outputs import Outputs


@final
class MaxSoftmax(Detector):
    r"""How unsure the classifier is of its answer: the log-odds of its being wrong; high for OOD.

    :math:`\log \frac{1 - p}{p}` of the largest softmax probability p.

    Paper: Hendrycks and Gimpel 2017, "A Baseline for Detecting Misclassified and
    Out-of-Distribution Examples in Neural Networks".
    Departs from the paper: log((1 - p) / p) in place of 1 - p. The ranking is the same, but 1 - p
    would be exactly 0, and tie, for every input the classifier is sure of.

    Example:
        >>> import torch
        >>> MaxSoftmax().score(Outputs(torch.tensor([[0.0, 0.0], [40.0, 0.0]]), {}))
        tensor([  0., -40.], dtype=torch.float64)
    """

    name: ClassVar[str] = "max_softmax"
    needs_fit = False

    def _score(self, outputs: Outputs) -> Tensor:
        check_several_classes(outputs.logits)
        return max_softmax_score(outputs.logits)
