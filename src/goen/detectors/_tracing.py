"""The scorers' arithmetic once more, in operations that torch.export and ONNX can hold.

Scoring itself depends on values (are they finite? which class is near enough to be measured again?)
and works in blocks; a traced program can do neither. What is here is compared with it by the tests,
and once more by ``goen export`` before a file appears.
"""

import torch
from torch import Tensor, nn

from goen.functional.neighbours import ROUNDING
from goen.functional.whitening import Whitening
from goen.outputs import Outputs


class TracedDistance(nn.Module):
    """Features ``(N, D)`` to log(1 + squared Mahalanobis distance of the unit vector), ``(N,)``."""

    centre: Tensor
    precision_chol: Tensor
    means: Tensor
    means_squared: Tensor

    def __init__(self, feature: str, whitening: Whitening) -> None:
        super().__init__()
        self.feature = feature
        self.register_buffer("centre", whitening.centre)
        self.register_buffer("precision_chol", whitening.precision_chol)
        self.register_buffer("means", whitening.whitened_means)
        self.register_buffer("means_squared", whitening.whitened_means.square().sum(dim=1))

    def forward(self, outputs: Outputs) -> Tensor:
        unit = traced_unit(outputs.features[self.feature])
        white = (unit - self.centre) @ self.precision_chol
        # In float64 the product form is good to 1e-16 of the squared lengths that cancel in it.
        cross = self.means_squared - 2 * white @ self.means.T
        squared = (white * white).sum(dim=1) + cross.amin(dim=1)
        return torch.log1p(squared.clamp_min(0))


class TracedNeighbour(nn.Module):
    """Features ``(N, D)`` to the Euclidean distance of the unit vector to its k-th neighbour."""

    bank: Tensor
    squared: Tensor

    def __init__(self, feature: str, bank: Tensor, k: int) -> None:
        super().__init__()
        self.feature = feature
        self.k = k
        self.register_buffer("bank", bank)  # as it was kept, in float32: half the file
        self.register_buffer("squared", bank.to(torch.float64).square().sum(dim=1))

    def forward(self, outputs: Outputs) -> Tensor:
        unit = traced_unit(outputs.features[self.feature])
        length = (unit * unit).sum(dim=1, keepdim=True)
        # As NeighbourIndex has it: a row of zeros is at a right angle to everything.
        missing = 2 - length - self.squared
        missing = torch.where(missing.abs() < ROUNDING, torch.zeros_like(missing), missing)
        doubled = length + self.squared - 2 * unit @ self.bank.to(torch.float64).T + missing
        nearest = torch.topk(doubled, self.k, dim=1, largest=False).values
        return nearest[:, -1].clamp_min(0).sqrt()


def traced_unit(features: Tensor) -> Tensor:
    """Rows divided by their lengths, float64; a zero row stays zero."""
    rows = features.to(torch.float64)
    largest = rows.abs().amax(dim=1, keepdim=True)
    rows = rows / torch.where(largest == 0, torch.ones_like(largest), largest)
    length = (rows * rows).sum(dim=1, keepdim=True).sqrt()
    return rows / torch.where(length == 0, torch.ones_like(length), length)


def traced_entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax, ``(N,)`` float64."""
    log_p = torch.log_softmax(logits.to(torch.float64), dim=1)
    # exp(log p) · log p is -0 where p is 0: log p is finite.
    return -(log_p.exp() * log_p).sum(dim=1)


def traced_energy(logits: Tensor) -> Tensor:
    """Minus the log-sum-exp of the logits, ``(N,)`` float64."""
    rows = logits.to(torch.float64)
    largest = rows.amax(dim=1)
    return -((rows - largest[:, None]).exp().sum(dim=1).log() + largest)
