"""Evidential deep learning: a Dirichlet distribution in place of the softmax."""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from goen.functional.predictive import dirichlet_kl_to_uniform, dirichlet_nll, vacuity
from goen.models.classifiers.classifier import Classifier, ClassifierOutput

# Share of the training after which the divergence has its full weight.
ANNEALED_AT = 0.5


class Evidential(Classifier):
    r"""A Dirichlet distribution from the evidence for each class; its vacuity is the uncertainty.

    :math:`\alpha = \mathrm{ReLU}(Wh + b) + 1`, probabilities :math:`\alpha_c / S` with
    :math:`S = \sum_c \alpha_c`, vacuity :math:`C / S`. The loss is :math:`\log S - \log \alpha_y +
    \lambda \, \mathrm{KL}(\mathrm{Dir}(\tilde\alpha) \| \mathrm{Dir}(1))`
    where :math:`\tilde\alpha` is :math:`\alpha` with 1 in the place of the label, so that only
    evidence for wrong classes is punished, and :math:`\lambda` rises from 0 to 1 over the first
    half of the training.

    Paper: GOEN §4.2; Sensoy et al., "Evidential deep learning to quantify classification
    uncertainty", NeurIPS 2018, whose equation for the marginal likelihood is what GOEN describes as
    "a multinomial negative log-likelihood term derived from the Dirichlet distribution".
    Departs from the paper: where an image has no evidence for its class, ReLU passes no gradient
    and the class may never come to life; there the gradient goes straight through, the values stay.
    On the embedded digits (width 8, 8 epochs, two seeds at each of the rates 0.1 and 0.03) accuracy
    was 13 to 70 % without this, 98 to 100 % with it. Label smoothing is ignored: the likelihood is
    of one label.

    Example:
        >>> logits, uncertainty = Evidential(8, 3).eval().predict(torch.zeros(2, 8))
        >>> bool((uncertainty <= 1).all())
        True
    """

    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, num_classes)

    def predict(self, hidden: Tensor) -> ClassifierOutput:
        alpha = relu(self.linear(hidden)) + 1
        return ClassifierOutput(_log_expectation(alpha), vacuity(alpha))

    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        logits = self.linear(hidden).to(torch.float64)
        place = labels[:, None]
        own = logits.gather(1, place)
        revived = torch.where(own > 0, 0.0, own - own.detach())  # 0, with a gradient
        alpha = (relu(logits) + 1).scatter_add(1, place, revived)
        misleading = alpha.scatter(1, place, 1.0)
        weight = min(1.0, progress / ANNEALED_AT)
        loss = dirichlet_nll(alpha, labels) + weight * dirichlet_kl_to_uniform(misleading)
        return loss.mean().to(hidden.dtype), _log_expectation(alpha.detach())


def _log_expectation(alpha: Tensor) -> Tensor:
    return alpha.log() - alpha.sum(dim=1, keepdim=True).log()
