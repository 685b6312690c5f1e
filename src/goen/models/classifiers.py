"""The predictive methods as classifiers on shared features: logits, uncertainty and a loss."""

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, linear, relu

from goen.functional.logits import max_softmax_score
from goen.functional.predictive import (
    dirichlet_kl_to_uniform,
    dirichlet_nll,
    log_mean,
    mutual_information,
    vacuity,
)

# The paper's number of passes, and the seed of whatever makes one pass differ from the next.
NUM_SAMPLES, SAMPLES_SEED = 20, 0
# Of EpiNet: numbers in an index, width of the hidden layer, indices of a training step.
INDEX_SIZE, EPINET_HIDDEN, TRAINING_INDICES = 8, 50, 4
PRIOR_SCALE = 1.0
# Share of an evidential training after which the divergence has its full weight.
ANNEALED_AT = 0.5
# Of the mixture of experts.
NUM_EXPERTS, EXPERT_HIDDEN = 5, 64


class ClassifierOutput(NamedTuple):
    """Logits ``(N, C)`` whose softmax is the probability of each class, and an uncertainty.

    ``uncertainty`` is ``(N,)`` float64, higher means more; ``None`` where a method has none.
    """

    logits: Tensor
    uncertainty: Tensor | None


class Classifier(nn.Module, ABC):
    """Features ``(N, D)`` to a prediction; built from the width D and the number of classes.

    In evaluation mode a prediction depends on its own row of features and on nothing else. In
    training mode it may be random, from torch's global generator. Called like a function, a
    classifier gives the logits alone.
    """

    @abstractmethod
    def predict(self, hidden: Tensor) -> ClassifierOutput:
        """Logits and uncertainty of each row."""

    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """What training makes small, and the logits ``(N, C)`` it was computed from.

        Here the cross-entropy of the logits.

        Args:
            hidden: ``(N, D)``.
            labels: ``(N,)``.
            label_smoothing: share of the target spread over all classes.
            progress: share of the whole training that is done, for what changes as it goes on.
        """
        logits = self(hidden)
        return cross_entropy(logits, labels, label_smoothing=label_smoothing), logits

    def forward(self, hidden: Tensor) -> Tensor:
        return self.predict(hidden).logits


class SamplingClassifier(Classifier):
    """A classifier that makes several predictions; their mutual information is its uncertainty."""

    @abstractmethod
    def samples(self, hidden: Tensor) -> Tensor:
        """Logits ``(S, N, C)``: in evaluation the same S functions for every row, every time."""

    def predict(self, hidden: Tensor) -> ClassifierOutput:
        log_probabilities = torch.log_softmax(self.samples(hidden).to(torch.float64), dim=2)
        logits = log_mean(log_probabilities).to(hidden.dtype)
        return ClassifierOutput(logits, mutual_information(log_probabilities))

    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The cross-entropy of each sample, averaged."""
        samples = self.samples(hidden)
        repeated = labels.repeat(len(samples))
        loss = cross_entropy(samples.flatten(0, 1), repeated, label_smoothing=label_smoothing)
        return loss, log_mean(torch.log_softmax(samples.detach(), dim=2))


class LinearClassifier(nn.Linear, Classifier):
    """A linear layer trained by cross-entropy, without an uncertainty estimate of its own.

    Paper: GOEN §4.2, the softmax baseline, and the classifier of GOEN itself (§5.4).
    Departs from the paper: nothing. Its uncertainty, one minus the largest probability, is computed
    from the logits by a detector.

    Example:
        >>> logits, uncertainty = LinearClassifier(4, 3).predict(torch.zeros(2, 4))
        >>> logits.shape, uncertainty
        (torch.Size([2, 3]), None)
    """

    def predict(self, hidden: Tensor) -> ClassifierOutput:
        return ClassifierOutput(self(hidden), None)


class MCDropout(SamplingClassifier):
    """Twenty passes with half of the features dropped; their mutual information is the uncertainty.

    Paper: GOEN §4.2; Gal and Ghahramani, "Dropout as a Bayesian approximation", ICML 2016.
    Departs from the paper: the masks are drawn once and saved with the network, the same twenty for
    every image. A score then depends on its image alone, and two images differ by what they are and
    not by the luck of their masks. All passes are one matrix product.

    Args:
        inputs: width of the features.
        num_classes: classes.
        rate: the share that is dropped.

    Example:
        >>> logits, uncertainty = MCDropout(8, 3).eval().predict(torch.ones(2, 8))
        >>> logits.shape, uncertainty.shape
        (torch.Size([2, 3]), torch.Size([2]))
    """

    masks: Tensor

    def __init__(self, inputs: int, num_classes: int, *, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate
        self.linear = nn.Linear(inputs, num_classes)
        generator = torch.Generator().manual_seed(SAMPLES_SEED)
        kept = torch.rand(NUM_SAMPLES, inputs, generator=generator, device="cpu") >= rate
        self.register_buffer("masks", kept)

    def samples(self, hidden: Tensor) -> Tensor:
        if self.training:
            out: Tensor = self.linear(dropout(hidden, self.rate))
            return out[None]
        # Dropping a feature is dropping its column of the weights: S networks side by side.
        weights = self.linear.weight * (self.masks[:, None] / (1 - self.rate))
        bias = self.linear.bias.repeat(len(self.masks))
        logits = linear(hidden, weights.flatten(0, 1), bias)
        return logits.view(len(hidden), *weights.shape[:2]).transpose(0, 1)


class Perturbation(nn.Module):
    """A multilayer perceptron of (features, index), its output dotted with the index.

    Features ``(N, D)`` and indices ``(S, I)`` give ``(S, N, C)``, as S passes over the
    concatenation would; but what depends on the features alone is computed once, and what depends
    on the index alone is folded into the weights.

    Example:
        >>> Perturbation(6, 3)(torch.zeros(4, 6), torch.zeros(2, 8))[0, 0]
        tensor([0., 0., 0.], grad_fn=<SelectBackward0>)
    """

    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs + INDEX_SIZE, EPINET_HIDDEN)
        self.second = nn.Linear(EPINET_HIDDEN, num_classes * INDEX_SIZE)

    def forward(self, hidden: Tensor, indices: Tensor) -> Tensor:
        width = hidden.shape[1]
        by_feature = linear(hidden, self.first.weight[:, :width], self.first.bias)
        by_index = linear(indices, self.first.weight[:, width:])
        active = relu(by_feature + by_index[:, None])
        weights = self.second.weight.view(-1, INDEX_SIZE, EPINET_HIDDEN)
        offset = linear(indices, self.second.bias.view(-1, INDEX_SIZE))
        towards = torch.einsum("si,cih->shc", indices, weights)
        return torch.baddbmm(offset[:, None], active, towards)


class EpiNet(SamplingClassifier):
    r"""Twenty passes with twenty indices z ~ N(0, I); their mutual information is the uncertainty.

    The logits of one index are :math:`Wh + b + \sigma_\theta(\mathrm{sg}[h], z) +
    \sigma_0(\mathrm{sg}[h], z)`: a linear base, a perturbation that learns, and a prior of the same
    form that never does. Where there is data the one learns to undo the other; elsewhere the prior
    is left and the passes disagree. sg stops gradients, so the backbone learns from the base alone.
    A training step averages the loss over four indices, drawn anew and shared by its images.

    Paper: GOEN §4.2; Osband et al., "Epistemic neural networks", NeurIPS 2023.
    Departs from the paper: GOEN's prior is "a copy" of the epinet; it is initialised on its own
    here, as in Osband et al., since a copy would make all passes equal. The twenty indices
    are drawn once and saved with the network, the same for every image. GOEN gives no sizes: the
    index has 8 numbers, the hidden layer 50, the prior has weight 1.

    Example:
        >>> logits, uncertainty = EpiNet(8, 3).eval().predict(torch.ones(2, 8))
        >>> logits.shape, uncertainty.shape
        (torch.Size([2, 3]), torch.Size([2]))
    """

    indices: Tensor

    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, num_classes)
        self.epinet = Perturbation(inputs, num_classes)
        self.prior = Perturbation(inputs, num_classes).requires_grad_(False)
        generator = torch.Generator().manual_seed(SAMPLES_SEED)
        indices = torch.randn(NUM_SAMPLES, INDEX_SIZE, generator=generator, device="cpu")
        self.register_buffer("indices", indices)

    def samples(self, hidden: Tensor) -> Tensor:
        indices = self.indices
        if self.training:
            indices = torch.randn(TRAINING_INDICES, INDEX_SIZE, device=hidden.device)
        still = hidden.detach()
        perturbed = self.base(hidden) + self.epinet(still, indices)
        out: Tensor = perturbed + PRIOR_SCALE * self.prior(still, indices)
        return out


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
            nn.Sequential(
                nn.Linear(inputs, EXPERT_HIDDEN), nn.ReLU(), nn.Linear(EXPERT_HIDDEN, num_classes)
            )
            for _ in range(NUM_EXPERTS)
        )
        self.gate = nn.Linear(inputs, NUM_EXPERTS)

    def predict(self, hidden: Tensor) -> ClassifierOutput:
        gate = self.gate(hidden)
        # The sigmoid of log((1 - g) / g) is 1 - g.
        uncertainty = torch.sigmoid(max_softmax_score(gate.detach()))
        each = torch.stack([expert(hidden) for expert in self.experts], dim=1)
        logits = (torch.softmax(gate, dim=1)[:, :, None] * each).sum(dim=1)
        return ClassifierOutput(logits, uncertainty)


ClassifierKind = Literal["linear", "dropout", "evidential", "epinet", "experts"]
CLASSIFIERS: dict[ClassifierKind, type[Classifier]] = {
    "linear": LinearClassifier,
    "dropout": MCDropout,
    "evidential": Evidential,
    "epinet": EpiNet,
    "experts": MixtureOfExperts,
}
