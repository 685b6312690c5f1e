"""The density of a mixture of Gaussians, and the bounds that the least distance gives."""

from __future__ import annotations

import torch
from torch import Tensor


def mixture_log_density(distances: Tensor, priors: Tensor) -> Tensor:
    r"""Log density of the mixture at each row, (N,), without the constant of its covariance.

    .. math:: \log \sum_c \pi_c e^{-d_c / 2}

    The whole is this minus :math:`\frac D2 \log 2\pi + \frac12 \log\det\Sigma`. Its negative is the
    score of which the least distance is the shortcut.

    Args:
        distances: squared Mahalanobis distances d (N, C), as from ``Whitening.distances``.
        priors: shares of the classes (C,), which sum to 1; 0 for a class without a mean.

    Example:
        >>> mixture_log_density(torch.tensor([[0.0, 0.0]]), torch.tensor([0.5, 0.5])).item()
        0.0
    """
    priors = priors.to(distances.device, torch.float64)
    return torch.logsumexp(priors.log() - distances.to(torch.float64) / 2, dim=1)


def log_density_bounds(distances: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    r"""Bounds on `mixture_log_density` from the least distance alone: at least, at most, (N,).

    With M the least distance and c its class,

    .. math:: -\tfrac12 M + \log \pi_c \;\le\; \log \sum_c \pi_c e^{-d_c / 2} \;\le\; -\tfrac12 M.

    The one term of the sum that is surely there, and every term at most the largest. The two are
    :math:`\log C` apart for equal priors, and :math:`-\log \pi_c` apart otherwise.

    Paper: GOEN, appendix, theorem on the minimum distance. Departs from the paper: its inequality
    has M / 2 below and adds log C above, which is right only for a sum without the priors.

    Example:
        >>> low, high = log_density_bounds(torch.tensor([[2.0, 8.0]]), torch.tensor([0.25, 0.75]))
        >>> round(low.item(), 4), high.item()  # -1 + log 0.25, -1
        (-2.3863, -1.0)
    """
    least, nearest = distances.to(torch.float64).min(dim=1)
    high = -least / 2
    return high + priors.to(high).log()[nearest], high
