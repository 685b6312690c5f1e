"""Scores from logits."""

import torch
from torch import Tensor

from goen.errors import UsageError
from goen.functional._rows import floats


def max_softmax_score(logits: Tensor) -> Tensor:
    r"""log((1 - p) / p) of the largest softmax probability p, ``(N,)`` float64; high for OOD.

    The paper's :math:`1 - \max_c p_c` under a strictly increasing map, so every ranking is the
    same, but computed from the other classes' log-sum-exp: 1 - p would saturate at exactly 0 and
    tie. Computed in the precision of the logits, in which no class vanishes beside the largest.

    Example:
        >>> max_softmax_score(torch.tensor([[0.0, 0.0], [40.0, 0.0]]))
        tensor([  0., -40.], dtype=torch.float64)
    """
    values = floats(logits)
    largest, place = values.max(dim=1, keepdim=True)
    others = (values - largest).scatter_(1, place, -torch.inf)
    return torch.logsumexp(others, dim=1).to(torch.float64)


def energy_score(logits: Tensor, temperature: float = 1.0) -> Tensor:
    r"""The free energy :math:`-T \log \sum_c e^{z_c / T}`, ``(N,)`` float64; high for OOD.

    The logarithm of the sum, which lies in 0 .. log C after the largest logit is taken out, is
    computed in the precision of the logits.

    Example:
        >>> energy_score(torch.tensor([[0.0, 0.0], [1000.0, 0.0]]))
        tensor([-6.9315e-01, -1.0000e+03], dtype=torch.float64)
    """
    values = floats(logits)
    largest = values.amax(dim=1, keepdim=True)
    total = (values - largest).div_(temperature).exp_().sum(dim=1).to(torch.float64)
    return -(largest.squeeze(1) + temperature * total.log())


def generalised_entropy(logits: Tensor, gamma: float = 0.1, top: int = 100) -> Tensor:
    r"""Sum of :math:`p^\gamma (1 - p)^\gamma` over the ``top`` largest probabilities; high for OOD.

    ``(N,)`` float64. Both log p and log(1 - p) keep all digits of the logits: of the largest
    probability, 1 - p is the sum of the others; any other is at most 1/2, where nothing cancels.

    Example:
        >>> generalised_entropy(torch.tensor([[0.0, 0.0], [800.0, 0.0]]), gamma=0.5)
        tensor([ 1.0000e+00, 3.8303e-174], dtype=torch.float64)
    """
    values = floats(logits)
    log_p = torch.log_softmax(values, dim=1)
    if top < log_p.shape[1]:
        log_p = log_p.topk(top, dim=1).values
    log_rest = torch.log1p(-log_p.exp())
    largest, place = log_p.max(dim=1, keepdim=True)
    of_largest = max_softmax_score(values)[:, None] + largest
    log_rest = log_rest.scatter(1, place, of_largest.to(log_rest.dtype))
    # In float64, in which no power vanishes.
    return (gamma * (log_p + log_rest)).to(torch.float64).exp().sum(dim=1)


def linear_logits(
    rows: Tensor, weight: Tensor, bias: Tensor, scale: Tensor | None = None
) -> Tensor:
    """The logits ``(N, C)`` of a classifier ``(C, D)``, ``(C,)``, in the precision of the rows.

    As the network computes its own: float32 errors of 1e-6 are in every logit already. Those of
    rows times ``scale`` ``(N, 1)`` are in float64: exponentials are too large for float32.

    Example:
        >>> linear_logits(torch.ones(1, 2), torch.eye(2).double(), torch.ones(2).double())
        tensor([[2., 2.]])
    """
    products = rows @ weight.to(rows.dtype).mT
    if scale is None:
        return products + bias.to(rows.dtype)
    return products * scale.to(torch.float64) + bias


def check_several_classes(logits: Tensor) -> None:
    """Refuse the logits of a single class, whose probability is 1 whatever comes."""
    if logits.shape[1] < 2:
        raise UsageError(
            f"This method compares classes and needs at least two, got logits of shape "
            f"{tuple(logits.shape)}. For one class take a distance: Mahalanobis or KNN."
        )
