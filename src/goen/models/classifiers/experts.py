"""A mixture of experts on shared features."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from goen.functional.logits import max_softmax_score
from goen.models.classifiers.classifier import Classifier, ClassifierOutput

NUM_EXPERTS, HIDDEN = 5, 64


class MixtureOfExperts(Classifier):
    r"""Five small networks and a gate that weights them; uncertainty is 1 - the largest weight.

    The logits are :math:`\sum_k g_k \, e_k(h)` with :math:`g = \mathrm{softmax}(Gh)`, trained by
    their cross-entropy. The largest weight is subtracted by adding up the others, so gates that are
    all but sure do not tie at 0.

    Paper: GOEN §4.2; Jacobs et al., "Adaptive mixtures of local experts", 1991, who weigh the
    experts' probabilities instead. Departs from the paper: nothing.

    Example:
        >>> logits, uncertainty = MixtureOfExperts(8, 3).eval().predict(torch.ones(2, 8))
        >>> bool((uncertainty <= 0.8).all())
        True
    """

    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, num_classes))
            for _ in range(NUM_EXPERTS)
        )
        self.gate = nn.Linear(inputs, NUM_EXPERTS)

    def predict(self, hidden: Tensor) -> ClassifierOutput:
        gate = self.gate(hidden)
        # The sigmoid of log((1 - g) / g) is 1 - g.
        uncertainty = torch.sigmoid(max_softmax_score(gate.detach()))
        return ClassifierOutput(self._mixture(hidden, gate), uncertainty)

    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        logits = self._mixture(hidden, self.gate(hidden))
        return cross_entropy(logits, labels, label_smoothing=label_smoothing), logits

    def _mixture(self, hidden: Tensor, gate: Tensor) -> Tensor:
        logits = torch.stack([expert(hidden) for expert in self.experts], dim=1)
        return (torch.softmax(gate, dim=1)[:, :, None] * logits).sum(dim=1)
