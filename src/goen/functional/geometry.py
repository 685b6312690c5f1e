"""The shape of a feature space: how tight, how far apart, how flat, how collapsed.

    g = feature_geometry(statistics, weight)                  from streamed ClassStatistics alone
    nearest_mean_agreement(features, logits, means)   NC4, needs the features

Statistics of raw features and of normalised ones give the two columns to compare.

Paper: GOEN §5.6, §6.1 and the appendix; Papyan, Han and Donoho 2020 for NC1 to NC4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from goen.errors import FitError, UsageError
from goen.functional._rows import blocks
from goen.functional.gaussian import ClassStatistics


@dataclass(frozen=True)
class Geometry:
    """What `geometry` measures. NaN is a measure that has no meaning there, such as an angle
    between the classes when there is one class.

    "Within" is the tied covariance, around each row's class mean; "total" is around the one mean of
    all rows, which is what a PCA of the features uses. Both are divided by N.
    """

    num_rows: int
    num_classes: int
    """Classes of which a row was seen."""
    dim: int
    inter_intra_ratio: float
    """Root mean square distance between two class means, over that of a row to its class mean."""
    total_top_share: float
    """Share of the total variance along its first principal component, in (0, 1]."""
    within_top_share: float
    total_effective_rank: float
    """exp(entropy of the eigenvalues' shares), in [1, D]."""
    within_effective_rank: float
    condition_number: float
    """Of the tied covariance as it is; infinite if it is singular to rounding."""
    condition_number_ridged: float
    """Of the tied covariance plus the ridge: the one that is really inverted."""
    nc1: float
    """Spread within classes against the spread of the class means; 0 when collapsed."""
    nc2_equinorm: float
    """Coefficient of variation of the lengths of the centred class means; 0 when equal."""
    nc2_equiangularity: float
    """Standard deviation of the cosines between two centred class means; 0 when equal."""
    nc2_simplex: float
    """Mean distance of these cosines from the simplex's -1 / (K - 1)."""
    nc3: float | None
    """Squared distance between the classifier's weights and the centred class means, each matrix
    scaled to length 1, in [0, 4]; None if no weights were given."""


def feature_geometry(
    statistics: ClassStatistics, weight: Tensor | None = None, *, ridge: float = 1e-5
) -> Geometry:
    r"""All measures that class statistics can give, without a second pass over the features.

    With K classes seen, their means :math:`\mu_c`, the mean of these :math:`\mu_G`, the tied
    covariance :math:`\Sigma_W` and
    :math:`\Sigma_B = \frac1K \sum_c (\mu_c - \mu_G)(\mu_c - \mu_G)^\top`:

    .. math:: \text{ratio} = \sqrt{\frac{\frac{1}{K(K-1)} \sum_{c \ne d} \lVert \mu_c - \mu_d
              \rVert^2}{\mathrm{tr} \Sigma_W}}, \qquad
              \text{NC1} = \frac1K \mathrm{tr}(\Sigma_W \Sigma_B^+)

    Args:
        statistics: what was seen; of raw features or of normalised ones, and so is the result.
        weight: of the linear classifier on these features, (C, D).
        ridge: added to the diagonal for `condition_number_ridged`; the paper's 1e-5 is meant for
            features of unit length.

    Raises:
        FitError: no rows, or numbers too large to square.
        UsageError: a weight of another shape.

    Paper: GOEN defines neither number it quotes. Its ratio is called "intra/inter" and rises as
    classes tighten, so it is inter/intra; distances are taken in root mean square, which a stream
    can give. Its "top principal component, 54.9 % of
    variance" is `total_top_share` of raw features, as a PCA gives it. NC1 to NC3: Papyan, Han and
    Donoho 2020.
    Departs from the paper: for classes of unequal size :math:`\mu_G` counts each class once, so
    that a simplex stays one. If all class means are equal NC1 is infinite, not the 0 that a
    pseudo-inverse of 0 would give.

    Example:
        >>> rows = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-3.0, 1.0], [-3.0, -1.0]])
        >>> g = feature_geometry(ClassStatistics(2, 2).update(rows, torch.tensor([0, 0, 1, 1])))
        >>> g.inter_intra_ratio, g.total_top_share, g.nc1
        (4.0, 0.8, 0.0)
    """
    within, total, means = _moments(statistics)
    equinorm, equiangularity, simplex = _simplex_measures(means)
    ridged = within + ridge * torch.eye(statistics.dim).to(within)
    return Geometry(
        num_rows=statistics.num_rows,
        num_classes=len(means),
        dim=statistics.dim,
        inter_intra_ratio=_ratio(_root_mean_square_distance(means), float(within.trace()) ** 0.5),
        total_top_share=top_share(total),
        within_top_share=top_share(within),
        total_effective_rank=effective_rank(total),
        within_effective_rank=effective_rank(within),
        condition_number=condition_number(within),
        condition_number_ridged=condition_number(ridged),
        nc1=_variability_collapse(within, means),
        nc2_equinorm=equinorm,
        nc2_equiangularity=equiangularity,
        nc2_simplex=simplex,
        nc3=None if weight is None else _self_duality(weight, means, statistics),
    )


def _moments(statistics: ClassStatistics) -> tuple[Tensor, Tensor, Tensor]:
    """The covariances within classes and in total (D, D), the centred class means (K, D)."""
    statistics.require_rows()
    within = statistics.within_scatter_ / statistics.num_rows
    total = statistics.total_scatter_ / statistics.num_rows
    _, deviation, _ = statistics._deviations()
    means = deviation - deviation.mean(dim=0)
    if not bool(torch.isfinite(total).all() and torch.isfinite(means.square().sum())):
        raise FitError("Features are too large to square. Scale or normalise them first.")
    return within, total, means


# -- one covariance --------------------------------------------------------------------------


def top_share(cov: Tensor) -> float:
    """Share of the variance of `cov` (D, D) along its first principal component; NaN for 0.

    Example:
        >>> top_share(torch.diag(torch.tensor([3.0, 1.0])))
        0.75
    """
    values = _eigenvalues(cov)
    return _ratio(float(values[-1]), float(values.sum()))


def effective_rank(cov: Tensor) -> float:
    r"""How many directions of `cov` (D, D) carry its variance, in [1, D]; NaN for 0.

    .. math:: \exp\left(-\sum_i p_i \log p_i\right), \qquad p_i = \lambda_i / \mathrm{tr}

    Paper: Roy and Vetterli 2007, on the eigenvalues of the covariance.

    Example:
        >>> round(effective_rank(torch.diag(torch.tensor([1.0, 1.0, 0.0]))), 12)
        2.0
    """
    values = _eigenvalues(cov)
    if float(values[-1]) == 0:
        return math.nan
    share = values / values.sum()
    return math.exp(-float(torch.xlogy(share, share).sum()))


def condition_number(cov: Tensor) -> float:
    """Largest over smallest eigenvalue of `cov` (D, D); NaN for 0.

    Infinite where the smallest is at most D times the rounding error of the largest, for then it is
    that rounding error.

    Example:
        >>> condition_number(torch.diag(torch.tensor([9.0, 1.0])))
        9.0
        >>> condition_number(torch.ones(2, 2))
        inf
    """
    values = _eigenvalues(cov)
    return _ratio(float(values[-1]), float(values[0]))


def _eigenvalues(cov: Tensor) -> Tensor:
    """Ascending, with what is only rounding error set to 0."""
    values = torch.linalg.eigvalsh(cov.detach().to(torch.float64))
    floor = len(cov) * torch.finfo(torch.float64).eps * values[-1].abs()
    return torch.where(values > floor, values, 0.0)


def _ratio(above: float, below: float) -> float:
    """above / below, infinite over 0, and NaN for 0 / 0."""
    if below == 0:
        return math.inf if above > 0 else math.nan
    return above / below


# -- class means, centred, (K, D) ------------------------------------------------------------


def _root_mean_square_distance(means: Tensor) -> float:
    """Between two different rows of `means`, which sum to 0; NaN for one row."""
    if len(means) < 2:
        return math.nan
    # The sum over ordered pairs of |a - b|² is 2K times the sum of |a|² around the mean.
    return math.sqrt(2 * float(means.square().sum()) / (len(means) - 1))


def _variability_collapse(within: Tensor, means: Tensor) -> float:
    if len(means) < 2:
        return math.nan
    _, lengths, directions = torch.linalg.svd(means, full_matrices=False)
    # Rank K - 1 at most: one direction of the K is always rounding error.
    floor = max(means.shape) * torch.finfo(torch.float64).eps * lengths[0]
    kept = lengths > floor
    if not bool(kept.any()):
        return _ratio(float(within.trace()), 0.0)
    along = torch.einsum("kd,de,ke->k", directions[kept], within, directions[kept])
    # Σ_B has eigenvalues length² / K, and NC1 divides by K again: the two K cancel.
    return float((along / lengths[kept].square()).sum())


def _simplex_measures(means: Tensor) -> tuple[float, float, float]:
    """Equinorm, equiangularity and distance from the simplex."""
    num_classes = len(means)
    lengths = torch.linalg.vector_norm(means, dim=1)
    if num_classes < 2:
        return math.nan, math.nan, math.nan
    equinorm = _ratio(float(lengths.std(correction=0)), float(lengths.mean()))
    if bool((lengths == 0).any()):
        return equinorm, math.nan, math.nan
    unit = means / lengths[:, None]
    above = torch.triu_indices(num_classes, num_classes, offset=1)
    cosines = (unit @ unit.mT)[above[0], above[1]]
    simplex = (cosines + 1 / (num_classes - 1)).abs().mean()
    return equinorm, float(cosines.std(correction=0)), float(simplex)


def _self_duality(weight: Tensor, means: Tensor, statistics: ClassStatistics) -> float:
    expected = (statistics.num_classes, statistics.dim)
    if weight.shape != expected:
        raise UsageError(
            f"Expected the classifier's weight as (C, D) = {expected}, got {tuple(weight.shape)}. "
            "Is it the layer that reads these features?"
        )
    weight = weight.detach().to(means)[statistics.counts_ > 0]
    sizes = torch.linalg.matrix_norm(weight), torch.linalg.matrix_norm(means)
    if 0 in (float(sizes[0]), float(sizes[1])):
        return math.nan
    return float((weight / sizes[0] - means / sizes[1]).square().sum())


# -- what needs the features -----------------------------------------------------------------


def nearest_mean_agreement(features: Tensor, logits: Tensor, means: Tensor) -> float:
    """NC4: share of rows that the classifier and the nearest class mean put in the same class.

    Nearest in Euclidean distance; a class without a mean (a row of NaN) is never the nearest, and
    to a row of NaN nothing is. NaN for no rows.

    Args:
        features: (N, D), those the classifier reads.
        logits: (N, C), its outputs for them.
        means: (C, D), such as ``statistics.means_`` of the training rows.

    Paper: Papyan, Han and Donoho 2020, who plot 1 minus this.

    Example:
        >>> features = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
        >>> means = torch.tensor([[0.0, 0.0], [0.0, 4.0]])
        >>> nearest_mean_agreement(features, torch.tensor([[2.0, 1.0], [2.0, 1.0]]), means)
        0.5
    """
    classes = torch.nonzero(~torch.isnan(means).all(dim=1)).flatten()
    if len(features) == 0:
        return math.nan
    present = means[classes].detach().to(torch.float64)
    agreeing = 0
    for block in blocks(len(features)):
        rows = features[block].detach().to(present)
        distance = torch.cdist(rows, present, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = classes[distance.argmin(dim=1)]
        agrees = nearest == logits[block].argmax(dim=1).to(nearest)
        agreeing += int((agrees & ~rows.isnan().any(dim=1)).sum())
    return agreeing / len(features)
