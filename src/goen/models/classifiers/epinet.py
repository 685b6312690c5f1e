"""EpiNet: a linear classifier, and a small network that perturbs it by a random index."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from goen.models.classifiers.classifier import NUM_SAMPLES, SAMPLES_SEED, SamplingClassifier

INDEX_SIZE = 8
HIDDEN = 50
TRAINING_INDICES = 4
PRIOR_SCALE = 1.0


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
        self.first = nn.Linear(inputs + INDEX_SIZE, HIDDEN)
        self.second = nn.Linear(HIDDEN, num_classes * INDEX_SIZE)

    def forward(self, hidden: Tensor, indices: Tensor) -> Tensor:
        width = hidden.shape[1]
        by_feature = linear(hidden, self.first.weight[:, :width], self.first.bias)
        by_index = linear(indices, self.first.weight[:, width:])
        active = relu(by_feature + by_index[:, None])
        weights = self.second.weight.view(-1, INDEX_SIZE, HIDDEN)
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
