"""The ordinary classifier: a linear layer and the softmax."""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from goen.models.classifiers.classifier import Classifier, ClassifierOutput


class LinearClassifier(nn.Linear, Classifier):
    """A linear layer trained by cross-entropy, without an uncertainty estimate of its own.

    Paper: GOEN §4.2, the softmax baseline, and the classifier of GOEN itself (§5.4).
    Departs from the paper: nothing. Its uncertainty, one minus the largest probability, is computed
    from the logits by a detector.

    Example:
        >>> import torch
        >>> logits, uncertainty = LinearClassifier(4, 3).predict(torch.zeros(2, 4))
        >>> logits.shape, uncertainty
        (torch.Size([2, 3]), None)
    """

    def predict(self, hidden: Tensor) -> ClassifierOutput:
        return ClassifierOutput(self(hidden), None)

    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        logits = self(hidden)
        return cross_entropy(logits, labels, label_smoothing=label_smoothing), logits
