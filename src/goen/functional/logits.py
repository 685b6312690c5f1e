"""Scores from logits."""

import torch
from torch import Tensor

from goen.errors import UsageError


def max_softmax_score(logits: Tensor) -> Tensor:
    r"""log((1 - p) / p) of the largest softmax probability p, ``(N,)`` float64; high for OOD.

    The paper's :math:`1 - \max_c p_c` under a strictly increasing map, so every ranking is the
    same, but computed from the other classes' log-sum-exp: 1 - p would saturate at exactly 0 and
    tie.

    Example:
        >>> max_softmax_score(torch.tensor([[0.0, 0.0], [40.0, 0.0]]))
        tensor([  0., -40.], dtype=torch.float64)
    """
    wide = logits.detach().to(torch.float64)
    largest, place = wide.max(dim=1, keepdim=True)
    others = wide.scatter(1, place, -torch.inf)
    return torch.logsumexp(others - largest, dim=1)


def energy_score(logits: Tensor, temperature: float = 1.0) -> Tensor:
    r"""The free energy :math:`-T \log \sum_c e^{z_c / T}`, ``(N,)`` float64; high for OOD.

    Example:
        >>> energy_score(torch.tensor([[0.0, 0.0], [1000.0, 0.0]]))
        tensor([-6.9315e-01, -1.0000e+03], dtype=torch.float64)
    """
    return -temperature * torch.logsumexp(logits.detach().to(torch.float64) / temperature, dim=1)


def generalised_entropy(logits: Tensor, gamma: float = 0.1, top: int = 100) -> Tensor:
    r"""Sum of :math:`p^\gamma (1 - p)^\gamma` over the ``top`` largest probabilities; high for OOD.

    ``(N,)`` float64. Both log p and log(1 - p) keep all their digits: of the largest probability,
    1 - p is the sum of the others; any other is at most 1/2, where nothing cancels.

    Example:
        >>> generalised_entropy(torch.tensor([[0.0, 0.0], [800.0, 0.0]]), gamma=0.5)
        tensor([ 1.0000e+00, 3.8303e-174], dtype=torch.float64)
    """
    wide = logits.detach().to(torch.float64)
    log_p = torch.log_softmax(wide, dim=1).topk(min(top, wide.shape[1]), dim=1).values
    log_rest = torch.log1p(-log_p.exp())
    log_rest[:, 0] = max_softmax_score(wide) + log_p[:, 0]
    return (gamma * (log_p + log_rest)).exp().sum(dim=1)


def check_several_classes(logits: Tensor) -> None:
    """Refuse the logits of a single class, whose probability is 1 whatever comes."""
    if logits.shape[1] < 2:
        raise UsageError(
            f"This method compares classes and needs at least two, got logits of shape "
            f"{tuple(logits.shape)}. For one class take a distance: Mahalanobis or KNN."
        )
