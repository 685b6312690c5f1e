"""One covariance for all classes: as the paper has it, or shrunk."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from goen.errors import FitError
from goen.functional._rows import blocks
from goen.functional.gaussian import ClassStatistics


def tied_covariance(
    statistics: ClassStatistics, ridge: float = 1e-5, *, shrinkage: float = 0.0
) -> Tensor:
    r"""Covariance shared by all classes, (D, D).

    .. math:: \Sigma = (1 - s) \hat\Sigma + s \frac{\mathrm{tr} \hat\Sigma}{D} I + \epsilon I,
              \qquad \hat\Sigma = \frac{1}{N} \sum_i (x_i - \mu_{y_i})(x_i - \mu_{y_i})^\top

    Args:
        statistics: what was seen.
        ridge: the paper's epsilon, an absolute variance: 1e-5 suits features of unit length.
        shrinkage: s in [0, 1], from `oas_shrinkage` or `ledoit_wolf_shrinkage`.

    Raises:
        FitError: no rows; no spread at all and no ridge; or numbers too large to square.

    Paper: GOEN §5.2 (divided by N, ridge 1e-5). Departs from the paper: nothing at shrinkage 0.

    Example:
        >>> rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 4.0], [5.0, 6.0]])
        >>> statistics = ClassStatistics(2, 2).update(rows, torch.tensor([0, 0, 1, 1]))
        >>> tied_covariance(statistics, ridge=0.25).tolist()
        [[0.75, 0.0], [0.0, 0.75]]
    """
    return _covariance(statistics, statistics.within_scatter_, ridge, shrinkage)


def total_covariance(statistics: ClassStatistics, ridge: float = 1e-5) -> Tensor:
    """Covariance of all rows around the one total mean, (D, D): the background of relative
    Mahalanobis.

    Example:
        >>> rows = torch.tensor([[0.0], [2.0]])
        >>> statistics = ClassStatistics(2, 1).update(rows, torch.tensor([0, 1]))
        >>> total_covariance(statistics, ridge=0.0).item()
        1.0
    """
    statistics.require_rows()
    return _covariance(statistics, statistics.total_scatter_, ridge, 0.0)


def _covariance(
    statistics: ClassStatistics, scatter: Tensor, ridge: float, shrinkage: float
) -> Tensor:
    statistics.require_rows()
    cov = scatter / statistics.num_rows
    if not bool(torch.isfinite(cov).all()):
        raise FitError(
            "The covariance is not finite: features are too large to square. Scale or normalise "
            "them first."
        )
    mean_variance = float(cov.trace()) / statistics.dim
    if mean_variance == 0 and ridge == 0:
        raise FitError(
            f"No feature varies within a class ({statistics.num_rows} rows), so the covariance is "
            "0 and no distance can be measured. Give a ridge above 0, or check the features."
        )
    cov *= 1 - shrinkage
    cov.diagonal().add_(shrinkage * mean_variance + ridge)
    return cov


def oas_shrinkage(statistics: ClassStatistics) -> float:
    r"""Oracle-approximating shrinkage of the tied covariance, in [0, 1], from the stream alone.

    .. math:: s = \min\left(1, \frac{\mathrm{tr}(\hat\Sigma^2) + \mathrm{tr}(\hat\Sigma)^2}
              {(N + 1) (\mathrm{tr}(\hat\Sigma^2) - \mathrm{tr}(\hat\Sigma)^2 / D)}\right)

    It needs only N, D and the covariance, so it is exact after one pass. Prefer it to
    `ledoit_wolf_shrinkage` unless a second pass over the features is cheap.

    Paper: Chen, Wiesel, Eldar & Hero 2010, in scikit-learn's form (no 2/D terms).

    Example:
        >>> rows = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> oas_shrinkage(ClassStatistics(1, 2).update(rows, torch.tensor([0, 0, 0, 0])))
        1.0
    """
    statistics.require_rows()
    if statistics.dim == 1:
        return 0.0  # the target is the covariance itself
    cov = statistics.within_scatter_ / statistics.num_rows
    squares = float(cov.square().sum())
    trace = float(cov.trace())
    spread = _anisotropy(cov)
    if spread == 0:
        return 1.0
    return min((squares + trace**2) / ((statistics.num_rows + 1) * spread), 1.0)


def ledoit_wolf_shrinkage(
    statistics: ClassStatistics, chunks: Iterable[tuple[Tensor, Tensor]]
) -> float:
    r"""Ledoit-Wolf shrinkage of the tied covariance, in [0, 1], by a second pass over the rows.

    .. math:: s = \min\left(1, \frac{\frac1N \sum_i \lVert x_i - \mu_{y_i} \rVert^4
              - \lVert \hat\Sigma \rVert_F^2}
              {N \, \lVert \hat\Sigma - \frac{\mathrm{tr} \hat\Sigma}{D} I \rVert_F^2}\right)

    Why a second pass: one pass cannot give it in O(C·D + D²) memory. A late row may move the mean
    of class c in any direction h, and the sum of fourth powers then changes by a term in
    :math:`h^\top S_c h`; being ready for every h means to hold the whole scatter matrix of every
    class, O(C·D²), 2 GB for 1,000 classes x 512. `oas_shrinkage` needs one pass only.

    Args:
        statistics: the finished first pass.
        chunks: pairs of features (N, D) and labels (N,): the same rows again, in any chunks.

    Paper: Ledoit & Wolf 2004, applied to the rows minus their class means, divided by N.

    Example:
        >>> rows = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 0, 0])
        >>> statistics = ClassStatistics(1, 2).update(rows, labels)
        >>> round(ledoit_wolf_shrinkage(statistics, [(rows, labels)]), 4)
        0.4656
    """
    statistics.require_rows()
    device = statistics._counts.device
    fourth_powers = 0.0
    for features, labels in chunks:
        for block in blocks(len(features)):
            rows = features[block].detach().to(device, torch.float64)
            label = labels[block].to(device, torch.int64)
            centred = (rows - statistics._mean_high[label]) - statistics._mean_low[label]
            fourth_powers += float(centred.square().sum(dim=1).square().sum())
    if statistics.dim == 1:
        return 0.0
    num_rows = statistics.num_rows
    cov = statistics.within_scatter_ / num_rows
    noise = (fourth_powers / num_rows - float(cov.square().sum())) / num_rows
    spread = _anisotropy(cov)
    noise = min(max(noise, 0.0), spread)
    return noise / spread if noise > 0 else 0.0


def _anisotropy(cov: Tensor) -> float:
    """Squared Frobenius distance of `cov` (D, D) from the multiple of I with the same trace."""
    deviation = cov.clone()
    deviation.diagonal().sub_(cov.trace() / len(cov))
    return float(deviation.square().sum())
