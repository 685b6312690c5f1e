"""Uncertainty from several predictions of one input, or from a Dirichlet distribution."""

import math

import torch
from torch import Tensor


def log_mean(log_probabilities: Tensor) -> Tensor:
    r"""Log of the mean probability ``(N, C)`` of log probabilities ``(S, N, C)``.

    :math:`\log \frac1S \sum_s p_{snc}`, without leaving the logarithms. Gradients pass.

    Example:
        >>> log_mean(torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()).exp()
        tensor([[0.7000, 0.3000]])
    """
    return torch.logsumexp(log_probabilities, dim=0) - math.log(len(log_probabilities))


def mutual_information(log_probabilities: Tensor) -> Tensor:
    r"""How much S predictions of each input disagree, in nats, ``(N,)`` float64; high for OOD.

    :math:`H(\bar p) - \frac1S \sum_s H(p_s)` of log probabilities ``(S, N, C)``, with
    :math:`\bar p` their mean: the entropy of the mean less the mean of the entropies. It lies
    between 0 and log min(S, C).

    The difference would lose all its digits where predictions are sure, and could fall below 0.
    It is computed as the mean divergence from the mean, written so that no summand is negative:
    :math:`\frac1S \sum_s \sum_c (p_{sc} \log (p_{sc} / \bar p_c) - p_{sc} + \bar p_c)`.

    Example:
        >>> sure = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
        >>> mutual_information(sure.log())
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    log_p = log_probabilities.detach().to(torch.float64)
    log_q = log_mean(log_p)
    p, q = log_p.exp(), log_q.exp()
    gap = log_p - log_q
    # From exp(-40) of the mean on down, p no longer counts, and might be 0 and its logarithm -inf.
    summand = torch.where(gap > -40, p * (gap + torch.expm1(-gap)), q)
    return summand.sum(dim=2).mean(dim=0).clamp_min(0)


def summed_variance(log_probabilities: Tensor) -> Tensor:
    r"""Variance over S predictions, summed over classes, ``(N,)`` float64; high for OOD.

    :math:`\sum_c \frac1S \sum_s (p_{sc} - \bar p_c)^2` of log probabilities ``(S, N, C)``. Divided
    by S, so that one prediction alone has variance 0; by S - 1 the ranking would be the same.

    Example:
        >>> summed_variance(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).log())
        tensor([0.5000], dtype=torch.float64)
    """
    p = log_probabilities.detach().to(torch.float64).exp()
    return p.var(dim=0, correction=0).sum(dim=1)


def dirichlet_nll(alpha: Tensor, labels: Tensor) -> Tensor:
    r"""Negative log-likelihood ``(N,)`` of each label when p ~ Dirichlet(alpha ``(N, C)``).

    :math:`-\log \int p_y \, \mathrm{Dir}(p; \alpha) \, dp = \log \sum_c \alpha_c - \log \alpha_y`:
    the multinomial likelihood with its probabilities integrated out. Gradients pass.

    Example:
        >>> dirichlet_nll(torch.tensor([[3.0, 1.0]]), torch.tensor([0])).exp()
        tensor([1.3333])
    """
    return alpha.sum(dim=1).log() - alpha.gather(1, labels[:, None]).squeeze(1).log()


def dirichlet_kl_to_uniform(alpha: Tensor) -> Tensor:
    r"""Divergence ``(N,)`` of Dirichlet(alpha ``(N, C)``) from the uniform one, in nats.

    :math:`\log \Gamma(S) - \log \Gamma(C) - \sum_c \log \Gamma(\alpha_c)
    + \sum_c (\alpha_c - 1) (\psi(\alpha_c) - \psi(S))` with :math:`S = \sum_c \alpha_c`. The
    logarithms of Gamma cancel: give float64. Gradients pass.

    Example:
        >>> dirichlet_kl_to_uniform(torch.tensor([[1.0, 1.0], [2.0, 1.0]], dtype=torch.float64))
        tensor([0.0000, 0.1931], dtype=torch.float64)
    """
    total = alpha.sum(dim=1, keepdim=True)
    spread = (alpha - 1) * (torch.digamma(alpha) - torch.digamma(total))
    normalisers = torch.lgamma(total).squeeze(1) - torch.lgamma(alpha).sum(dim=1)
    return normalisers - math.lgamma(alpha.shape[1]) + spread.sum(dim=1)


def vacuity(alpha: Tensor) -> Tensor:
    r"""How little evidence there is, ``(N,)`` float64 in (0, 1]; high for OOD.

    :math:`C / \sum_c \alpha_c` of Dirichlet parameters ``(N, C)``, each at least 1: 1 without any
    evidence.

    Example:
        >>> vacuity(torch.tensor([[1.0, 1.0], [7.0, 1.0]]))
        tensor([1.0000, 0.2500], dtype=torch.float64)
    """
    return alpha.shape[1] / alpha.detach().sum(dim=1, dtype=torch.float64)
