"""The entropy of the softmax."""

from typing import ClassVar, final

from torch import Tensor

from goen.detectors._base import Detector
from goen.functional.cues import entropy
from goen.functional.logits import check_several_classes
from goen.outputs import Outputs


@final
class Entropy(Detector):
    r"""The entropy of the predicted probabilities, in nats; high for OOD.

    :math:`-\sum_c p_c \log p_c` of the softmax p.

    Paper: Hendrycks and Gimpel 2017, "A Baseline for Detecting Misclassified and
    Out-of-Distribution Examples in Neural Networks", arXiv 1610.02136, which compares it with the
    largest probability. Departs from the paper: nothing.

    It fails where the classifier is sure of OOD images, as max softmax does.

    Example:
        >>> import torch
        >>> Entropy().score(Outputs(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), {}))
        tensor([0.6931, 0.0012], dtype=torch.float64)
    """

    name: ClassVar[str] = "entropy"
    needs_fit = False

    def _score(self, outputs: Outputs) -> Tensor:
        check_several_classes(outputs.logits)
        return entropy(outputs.logits)
