"""Class-conditional Gaussians with one tied covariance: statistics, whitening, distances, cues.

Everything is float64 inside and comes back as float64, whatever float type goes in.

    statistics = ClassStatistics(num_classes, dim)          one pass, any chunking, mergeable
    cov = tied_covariance(statistics, ridge=1e-5)           (D, D)
    whitening = whitener(statistics.means_, cov)            Cholesky, condition number, or FitError
    distance, label = whitening.nearest(features)           min over classes, and which class

Paper: GOEN, §5.2 (density) and §5.3 (the three cues).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from goen.errors import ArtifactError, FitError, UsageError

__all__ = [
    "ClassStatistics",
    "Nearest",
    "Whitening",
    "entropy",
    "ledoit_wolf_shrinkage",
    "log_distance",
    "max_inner_product",
    "normalise",
    "oas_shrinkage",
    "tied_covariance",
    "total_covariance",
    "whitener",
]

# Rows multiplied at once: 8 MB of float64 at D = 512, large enough that the product runs at full
# speed and small enough that the working memory does not depend on the caller's chunks.
_BLOCK_ROWS = 2048
# Elements prepared at once on a CPU. torch spreads an operation over threads from 2^15 elements on
# (and indexing always, so index_select below), and each time waits for the slowest. Beside one busy
# process on two cores, a chunk of 4,096 x 512 took 370 ms in whole-block operations, 84 ms so.
_SLICE_ELEMENTS = 2**15 - 1


class ClassStatistics:
    r"""Counts, class means and scatter matrices of a stream of labelled features.

    One pass, memory O(C·D + D²) whatever the number of rows. Each block is centred on its own class
    means, and Chan's term accounts for the distance to the means so far,

    .. math:: W \leftarrow W + \sum_{i} (x_i - \bar x_{y_i})(x_i - \bar x_{y_i})^\top
              + \sum_c \frac{n_c m_c}{n_c + m_c} (\bar x_c - \mu_c)(\bar x_c - \mu_c)^\top,

    with :math:`n_c` rows of class c before the block and :math:`m_c` in it. Every term is positive
    semi-definite, so nothing cancels. A mean is held as an unevaluated sum of two doubles, so that
    a common offset of 1e6 standard deviations costs no digit of the scatter.

    Args:
        num_classes: C; labels are 0 to C - 1. A class need not occur.
        dim: D, the width of the features.
        device: where the statistics live; features are brought there.

    Paper: GOEN §5.2. Departs from the paper: nothing; the paper does not say how to sum.

    Example:
        >>> import torch
        >>> features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]])
        >>> statistics = ClassStatistics(2, 2).update(features, torch.tensor([0, 0, 1]))
        >>> statistics.means_.tolist()
        [[1.0, 0.0], [5.0, 5.0]]
        >>> statistics.within_scatter_.tolist()
        [[2.0, 0.0], [0.0, 0.0]]
    """

    def __init__(self, num_classes: int, dim: int, *, device: torch.device | str = "cpu") -> None:
        if num_classes < 1 or dim < 1:
            raise UsageError(
                f"ClassStatistics needs at least one class and one dimension, "
                f"got num_classes={num_classes}, dim={dim}."
            )
        self.num_classes = num_classes
        self.dim = dim
        self._counts = torch.zeros(num_classes, dtype=torch.int64, device=device)
        # mean = high + low, with |low| at most half a unit in the last place of high.
        self._mean_high = torch.zeros(num_classes, dim, dtype=torch.float64, device=device)
        self._mean_low = torch.zeros_like(self._mean_high)
        self._scatter = torch.zeros(dim, dim, dtype=torch.float64, device=device)

    def __repr__(self) -> str:
        seen = int((self._counts > 0).sum())
        return (
            f"ClassStatistics(num_classes={self.num_classes}, dim={self.dim}: "
            f"{self.num_rows} rows, {seen} classes seen)"
        )

    # -- adding ------------------------------------------------------------------------------

    def update(self, features: Tensor, labels: Tensor) -> Self:
        """These statistics with more rows added; unchanged if an error is raised.

        Args:
            features: (N, D), any float type.
            labels: (N,), integers in [0, C).

        Raises:
            FitError: a feature is NaN or infinite.
            UsageError: a shape, type or label that cannot be meant.
        """
        _check_features(features, self.dim)
        _check_labels(labels, len(features), self.num_classes)
        _check_finite_for_fit(features)
        labels = labels.detach().to(self._counts.device, torch.int64)
        for block in _blocks(len(features)):
            self._add_block(features[block].detach(), labels[block])
        return self

    def _add_block(self, features: Tensor, labels: Tensor) -> None:
        # Cost is in the classes present, not in C: `present` is (K,), K <= rows.
        present, position, num_new = torch.unique(labels, return_inverse=True, return_counts=True)
        num_old = self._counts.index_select(0, present)
        high = self._mean_high.index_select(0, present)
        low = self._mean_low.index_select(0, present)
        by_class = torch.argsort(position, stable=True)
        class_starts = num_new.cumsum(0) - num_new
        unseen = num_old == 0
        if bool(unseen.any()):
            # A new class is first measured from one of its own rows: a large offset is gone before
            # anything is summed, and equal rows give a scatter of exactly zero.
            first = by_class.index_select(0, class_starts).to(features.device)
            high = torch.where(unseen[:, None], features.index_select(0, first).to(high), high)
        # N rows of the block and K of Chan's term: the outer products of all are one product.
        buffer = high.new_empty(len(labels) + len(present), self.dim)
        centred = buffer[: len(labels)]
        slices = _slices(len(features), self.dim, high.device)
        for part in slices:
            own_mean = high.index_select(0, position[part])
            torch.sub(features[part].to(high), own_mean, out=centred[part])
        # The sum of each class: what index_add_ does, in a fixed order and without threads.
        step = embedding_bag(by_class, centred, class_starts, mode="sum") / num_new[:, None]
        for part in slices:
            centred[part] -= step.index_select(0, position[part])
        buffer[len(labels) :] = self._combine(present, num_old, num_new, high, low, step - low)
        self._scatter.addmm_(buffer.mT, buffer)

    def merge(self, other: ClassStatistics) -> Self:
        """These statistics as if they had also seen every row that `other` has seen.

        Exact, and the same to rounding in any order. `other` is left as it was.

        Example:
            >>> a = ClassStatistics(1, 1).update(torch.tensor([[1.0]]), torch.tensor([0]))
            >>> b = ClassStatistics(1, 1).update(torch.tensor([[3.0]]), torch.tensor([0]))
            >>> a.merge(b).means_.item(), round(a.within_scatter_.item(), 12)
            (2.0, 2.0)
        """
        if (other.num_classes, other.dim) != (self.num_classes, self.dim):
            raise UsageError(
                f"Cannot merge statistics of {other.num_classes} classes x {other.dim} dimensions "
                f"into {self.num_classes} x {self.dim}."
            )
        present = torch.nonzero(other._counts).flatten()
        device = self._counts.device
        num_new = other._counts[present].to(device)
        other_high, other_low = (
            mean[present].to(device) for mean in (other._mean_high, other._mean_low)
        )
        present = present.to(device)
        num_old = self._counts[present]
        unseen = (num_old == 0)[:, None]
        high = torch.where(unseen, other_high, self._mean_high[present])
        low = self._mean_low[present]
        # The high parts cancel first, without rounding where the means are close.
        delta = (other_high - high) + (other_low - low)
        between = self._combine(present, num_old, num_new, high, low, delta)
        self._scatter += other._scatter.to(device)
        self._scatter.addmm_(between.mT, between)
        return self

    def _combine(
        self,
        classes: Tensor,
        num_old: Tensor,
        num_new: Tensor,
        high: Tensor,
        low: Tensor,
        delta: Tensor,
    ) -> Tensor:
        """Move the means of `classes` (K,) by their share of `delta` (K, D).

        Returns the rows (K, D) whose outer products are Chan's term.
        """
        num_both = num_old + num_new
        share = (num_new.to(torch.float64) / num_both)[:, None]
        high, low = _two_sum(high, low + delta * share)
        self._mean_high.index_copy_(0, classes, high)
        self._mean_low.index_copy_(0, classes, low)
        self._counts.index_copy_(0, classes, num_both)
        return delta * (num_old[:, None] * share).sqrt()

    # -- reading -----------------------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        """N, the number of rows seen."""
        return int(self._counts.sum())

    @property
    def counts_(self) -> Tensor:
        """Rows seen per class, (C,) int64."""
        return self._counts.clone()

    @property
    def empty_classes(self) -> tuple[int, ...]:
        """The classes of which no row was seen; their means are undefined."""
        return tuple(torch.nonzero(self._counts == 0).flatten().tolist())

    @property
    def means_(self) -> Tensor:
        """Class means, (C, D); a class without rows has a row of NaN, for it has no mean."""
        return torch.where((self._counts > 0)[:, None], self._mean_high, torch.nan)

    @property
    def within_scatter_(self) -> Tensor:
        """Sum over rows of (x - its class mean)(x - its class mean)^T, (D, D)."""
        return (self._scatter + self._scatter.mT) / 2

    @property
    def between_scatter_(self) -> Tensor:
        """Sum over classes of count · (class mean - total mean)(class mean - total mean)^T."""
        _, deviation, counts = self._deviations()
        return (deviation * counts[:, None]).mT @ deviation

    @property
    def total_mean_(self) -> Tensor:
        """Mean of all rows, class or no class, (D,)."""
        mean, _, _ = self._deviations()
        return mean

    @property
    def total_scatter_(self) -> Tensor:
        """Sum over rows of (x - total mean)(x - total mean)^T = within + between, (D, D)."""
        return self.within_scatter_ + self.between_scatter_

    def _deviations(self) -> tuple[Tensor, Tensor, Tensor]:
        """Total mean (D,), class means minus total mean (K, D) and counts (K,) of classes seen."""
        _check_not_empty(self)
        seen = self._counts > 0
        high, counts = self._mean_high[seen], self._counts[seen].to(torch.float64)
        from_first = (high - high[0]) + self._mean_low[seen]
        mean = (counts / counts.sum()) @ from_first
        return high[0] + mean, from_first - mean, counts

    # -- saving ------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on later, as a plain dictionary of tensors.

        Example:
            >>> statistics = ClassStatistics(2, 3)
            >>> sorted(statistics.state())
            ['counts', 'mean_high', 'mean_low', 'within_scatter']
            >>> ClassStatistics.from_state(statistics.state())
            ClassStatistics(num_classes=2, dim=3: 0 rows, 0 classes seen)
        """
        return {
            "counts": self._counts.clone(),
            "mean_high": self._mean_high.clone(),
            "mean_low": self._mean_low.clone(),
            "within_scatter": self._scatter.clone(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The statistics that `state()` described, bit for bit.

        Raises:
            ArtifactError: a tensor is missing, or does not fit the others.
        """
        wanted = {"counts", "mean_high", "mean_low", "within_scatter"}
        if set(state) != wanted:
            raise ArtifactError(
                f"Class statistics consist of {sorted(wanted)}, got {sorted(state)}. "
                "Were they saved by another version?"
            )
        means = state["mean_high"]
        if means.ndim != 2 or 0 in means.shape:
            raise ArtifactError(f"Class means have shape (C, D), got {tuple(means.shape)}.")
        loaded = cls(*means.shape, device=means.device)
        for name, own in (
            ("counts", loaded._counts),
            ("mean_high", loaded._mean_high),
            ("mean_low", loaded._mean_low),
            ("within_scatter", loaded._scatter),
        ):
            saved = state[name]
            if saved.shape != own.shape or saved.dtype != own.dtype:
                raise ArtifactError(
                    f"Class statistics of {loaded.num_classes} classes x {loaded.dim} dimensions "
                    f"need {name!r} as {own.dtype} {tuple(own.shape)}, "
                    f"got {saved.dtype} {tuple(saved.shape)}."
                )
            own.copy_(saved)
        if bool((loaded._counts < 0).any()):
            raise ArtifactError("Class statistics hold a negative count: the file is damaged.")
        return loaded


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
    _check_not_empty(statistics)
    return _covariance(statistics, statistics.total_scatter_, ridge, 0.0)


def _covariance(
    statistics: ClassStatistics, scatter: Tensor, ridge: float, shrinkage: float
) -> Tensor:
    if not (math.isfinite(ridge) and ridge >= 0):
        raise UsageError(f"ridge is a variance, at least 0, got {ridge}.")
    if not 0 <= shrinkage <= 1:
        raise UsageError(f"shrinkage lies in [0, 1], got {shrinkage}.")
    _check_not_empty(statistics)
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
    _check_not_empty(statistics)
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
    _check_not_empty(statistics)
    device = statistics._counts.device
    counts = torch.zeros_like(statistics._counts)
    fourth_powers = 0.0
    for features, labels in chunks:
        _check_features(features, statistics.dim)
        _check_labels(labels, len(features), statistics.num_classes)
        _check_finite_for_fit(features)
        counts += torch.bincount(labels.to(device), minlength=statistics.num_classes)
        for block in _blocks(len(features)):
            rows = features[block].detach().to(device, torch.float64)
            label = labels[block].to(device, torch.int64)
            centred = (rows - statistics._mean_high[label]) - statistics._mean_low[label]
            fourth_powers += float(centred.square().sum(dim=1).square().sum())
    if not torch.equal(counts, statistics._counts):
        raise UsageError(
            f"Ledoit-Wolf needs the same rows in the second pass: the statistics have seen "
            f"{statistics.num_rows}, the chunks held {int(counts.sum())}"
            f"{', in other classes' if int(counts.sum()) == statistics.num_rows else ''}."
        )
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


class Nearest(NamedTuple):
    """The nearest class of each row."""

    distance: Tensor
    """Squared Mahalanobis distance to it, (N,) float64."""
    label: Tensor
    """Its number in 0 .. C - 1, (N,) int64."""


@dataclass(frozen=True, eq=False)
class Whitening:
    r"""The linear map under which the tied covariance is the identity; made by `whitener`.

    With :math:`\Sigma = L L^\top` and :math:`U = L^{-\top}` (`precision_chol`, upper triangular,
    :math:`U U^\top = \Sigma^{-1}`), a row becomes :math:`(x - m) U`, and Mahalanobis distances are
    Euclidean. The centre m is the mean of the class means, taken off first so that a large common
    offset never meets the small directions of the covariance.
    """

    precision_chol: Tensor
    """(D, D), upper triangular."""
    centre: Tensor
    """(D,)."""
    whitened_means: Tensor
    """(K, D), of the K classes that have a mean."""
    classes: Tensor
    """(K,), their numbers."""
    num_classes: int
    """C, classes without a mean included."""
    condition_number: float
    """Largest over smallest eigenvalue of the covariance."""

    @property
    def dim(self) -> int:
        """D, the width of the features."""
        return len(self.centre)

    @property
    def empty_classes(self) -> tuple[int, ...]:
        """The classes without a mean: their distance is infinite, they are never the nearest."""
        return tuple(sorted(set(range(self.num_classes)) - set(self.classes.tolist())))

    def whiten(self, features: Tensor) -> Tensor:
        """Rows (N, D) under the map, (N, D) float64.

        Raises:
            UsageError: a wrong width, or rows that are not finite.
        """
        _check_features(features, self.dim)
        features = features.detach()
        rows = self.centre.new_empty(features.shape)
        for part in _slices(len(features), self.dim, rows.device):
            torch.sub(features[part].to(rows), self.centre, out=rows[part])
        whitened = rows @ self.precision_chol
        if not _sums_are_finite(whitened):
            bad = int((~torch.isfinite(whitened).all(dim=1)).sum())
            if bad:
                raise UsageError(
                    f"{bad} of {len(features)} feature rows are NaN, infinite or too large to "
                    "measure. Check the images and the network that gave them."
                )
        return whitened

    def distances(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distance of each row (N, D) to each class, (N, C).

        Taken from differences, so never negative and exactly 0 at a class mean. Infinite for a
        class without a mean. O(N·C·D) without a matrix product: for many classes, when only the
        least is wanted, `nearest` is ten times faster.

        Example:
            >>> means = torch.tensor([[0.0, 0.0], [-4.0, 0.0]])
            >>> cov = torch.diag(torch.tensor([4.0, 1.0]))
            >>> whitener(means, cov).distances(torch.tensor([[2.0, 0.0]])).tolist()
            [[1.0, 9.0]]
        """
        _check_features(features, self.dim)
        out = self.centre.new_full((len(features), self.num_classes), math.inf)
        for block in _blocks(len(features)):
            out[block, self.classes] = torch.cdist(
                self.whiten(features[block]),
                self.whitened_means,
                compute_mode="donot_use_mm_for_euclid_dist",
            ).square()
        return out

    def nearest(self, features: Tensor) -> Nearest:
        r"""Squared Mahalanobis distance to the nearest class, and that class, per row (N, D).

        The product form :math:`\lVert b_c \rVert^2 - 2 a \cdot b_c` only proposes: it cancels when
        classes lie many standard deviations apart. Every class within its rounding error of the
        least (nearly always one) is measured again from the difference :math:`a - b_c`, and the
        least of those is returned. So the result is the least of `distances` to rounding, at the
        price of one product with (D, D) and one with (D, C).

        Paper: GOEN §5.2. Departs from the paper: nothing.

        Example:
            >>> means = torch.tensor([[0.0, 0.0], [-4.0, 0.0]])
            >>> cov = torch.diag(torch.tensor([4.0, 1.0]))
            >>> distance, label = whitener(means, cov).nearest(torch.tensor([[2.0, 0.0]]))
            >>> distance.item(), label.item()
            (1.0, 0)
        """
        _check_features(features, self.dim)
        parts = [self._nearest_in_block(features[block]) for block in _blocks(len(features))]
        if not parts:
            return Nearest(self.centre.new_empty(0), self.classes.new_empty(0))
        return Nearest(
            torch.cat([part.distance for part in parts]), torch.cat([part.label for part in parts])
        )

    def _nearest_in_block(self, features: Tensor) -> Nearest:
        whitened, means = self.whiten(features), self.whitened_means
        means_squared = means.square().sum(dim=1)
        proposal = torch.addmm(means_squared, whitened, means.mT, alpha=-2)
        # Bound on the error of a dot product of length D: about D·eps·(|a|² + 2|b|²) here.
        lengths = [
            torch.linalg.vector_norm(whitened[part], dim=1)
            for part in _slices(len(whitened), self.dim, whitened.device)
        ]
        size = torch.cat(lengths).square() + 2 * means_squared.max()
        error = (self.dim + 8) * torch.finfo(torch.float64).eps * size
        least = proposal.amin(dim=1)
        pairs = torch.nonzero((proposal <= (least + 2 * error)[:, None]).flatten()).flatten()
        squared = proposal.fill_(math.inf)
        for part in _slices(len(pairs), self.dim, pairs.device):
            pair = pairs[part]
            difference = whitened.index_select(0, pair // len(means))
            difference -= means.index_select(0, pair % len(means))
            direct = torch.linalg.vecdot(difference, difference)
            squared.view(-1).index_copy_(0, pair, direct)
        distance, position = squared.min(dim=1)
        return Nearest(distance, self.classes.index_select(0, position))


def whitener(means: Tensor, cov: Tensor, *, max_condition: float = 1e14) -> Whitening:
    """The whitening for class means and a tied covariance, or an error if it cannot be trusted.

    Args:
        means: (C, D); a row of NaN is a class without a mean and is left out.
        cov: (D, D), symmetric and positive definite.
        max_condition: the condition number above which the smallest directions are rounding error.

    Raises:
        FitError: no class has a mean, numbers are not finite, or the condition number is too large.
        UsageError: shapes that do not belong together, or a `cov` that is not symmetric.

    Example:
        >>> whitening = whitener(torch.zeros(1, 2), torch.diag(torch.tensor([4.0, 1.0])))
        >>> whitening.condition_number
        4.0
        >>> whitening.whiten(torch.tensor([[2.0, 3.0]])).tolist()
        [[1.0, 3.0]]
    """
    dim = means.shape[-1]
    if means.ndim != 2 or cov.shape != (dim, dim) or 0 in means.shape:
        raise UsageError(
            f"Expected means (C, D) and cov (D, D), got {tuple(means.shape)} and "
            f"{tuple(cov.shape)}."
        )
    cov = cov.detach().to(torch.float64)
    means = means.detach().to(cov.device, torch.float64)
    has_mean = ~torch.isnan(means).all(dim=1)
    if not bool(has_mean.any()):
        raise FitError("No class has a mean: nothing was fitted. Give at least one labelled row.")
    present = means[has_mean]
    if not (bool(torch.isfinite(present).all()) and bool(torch.isfinite(cov).all())):
        raise FitError("Means and covariance must be finite. Check the features they come from.")
    if not torch.allclose(cov, cov.mT, rtol=1e-8, atol=1e-12 * float(cov.abs().max())):
        raise UsageError("cov is not symmetric. A factor or a precision in place of a covariance?")

    eigenvalues = torch.linalg.eigvalsh(cov)
    least, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    condition = largest / least if least > 0 else math.inf
    factor, failed = torch.linalg.cholesky_ex(cov)
    if not condition <= max_condition or bool(failed):
        raise FitError(
            f"The covariance ({dim} x {dim}) has condition number {condition:.3g}, and above "
            f"{max_condition:.3g} its smallest directions are rounding error. Raise the ridge "
            f"(to {1e-10 * max(largest, 1e-300):.1g} or more), shrink it (oas_shrinkage), or "
            "L2-normalise the features."
        )
    identity = torch.eye(dim, dtype=torch.float64, device=cov.device)
    precision_chol = torch.linalg.solve_triangular(factor, identity, upper=False).mT.contiguous()
    # From the first mean, as a plain average of large equal numbers would round.
    centre = present[0] + (present - present[0]).mean(dim=0)
    return Whitening(
        precision_chol=precision_chol,
        centre=centre,
        whitened_means=(present - centre) @ precision_chol,
        classes=torch.nonzero(has_mean).flatten(),
        num_classes=len(means),
        condition_number=condition,
    )


# -- what the paper does before and after the distance ---------------------------------------


def normalise(features: Tensor) -> Tensor:
    r"""Each row (N, D) divided by its Euclidean length, (N, D) float64.

    A zero row has no direction and stays zero: its distance is then that of the origin, far from
    every class of unit vectors. A row with NaN or infinity becomes NaN, for the fit to refuse.

    Paper: GOEN §5.2, :math:`\tilde z = z / \lVert z \rVert_2`. Departs from the paper: it assumes
    :math:`z \ne 0`.

    Example:
        >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    _check_features(features)
    rows = features.detach().to(torch.float64)
    if rows.shape[1] == 0:
        return rows.clone()
    # Through the largest entry, so that squares neither overflow nor vanish.
    largest = rows.abs().amax(dim=1, keepdim=True)
    rows = rows / torch.where(largest == 0, 1.0, largest)
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows.div_(torch.where(length == 0, 1.0, length))


def max_inner_product(features: Tensor, means: Tensor) -> Tensor:
    r"""Largest inner product of each row (N, D) with a class mean (C, D), (N,): cue m2.

    High for ID, alone among the cues.

    A class without a mean (a row of NaN) is left out.

    Paper: GOEN §5.3, :math:`m_2 = \max_c \tilde z^\top \mu_c`, on features of unit length. Departs
    from the paper: nothing; it says "cosine", but :math:`\mu_c` is a mean of unit vectors, shorter
    than 1, and is not normalised again.

    Example:
        >>> max_inner_product(torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, 0.0], [0.0, 0.5]]))
        tensor([0.6000], dtype=torch.float64)
    """
    _check_features(features, means.shape[-1])
    means = means.detach().to(features.device, torch.float64)
    means = means[~torch.isnan(means).all(dim=1)]
    if len(means) == 0:
        raise FitError("No class has a mean: nothing was fitted. Give at least one labelled row.")
    return (features.detach().to(torch.float64) @ means.mT).amax(dim=1)


def log_distance(distance: Tensor) -> Tensor:
    """log(distance + 1) of squared distances of any shape: cue m1, high for OOD.

    Paper: GOEN §5.3, m1. Departs from the paper: nothing (``log1p``, exact near 0).

    Example:
        >>> log_distance(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    if bool((distance < 0).any()):
        raise UsageError("A squared distance is at least 0, got a negative one.")
    return torch.log1p(distance.detach().to(torch.float64))


def entropy(logits: Tensor) -> Tensor:
    r"""Entropy of the softmax of each row of logits (N, C), in nats, (N,): cue m3, high for OOD.

    :math:`-\sum_c p_c \log p_c` with 0 log 0 = 0, in [0, log C]. NaN logits give NaN.

    Paper: GOEN §5.3, m3. Departs from the paper: nothing.

    Example:
        >>> entropy(torch.tensor([[0.0, 0.0], [1000.0, -1000.0]]))
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    _check_features(logits)
    log_p = torch.log_softmax(logits.detach().to(torch.float64), dim=1)
    p = log_p.exp()
    return torch.where(p == 0, 0.0, -p * log_p).sum(dim=1)


# -- checks and arithmetic -------------------------------------------------------------------


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b rounded, and what the rounding lost, exactly (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _blocks(num_rows: int) -> Iterable[slice]:
    return (slice(start, start + _BLOCK_ROWS) for start in range(0, num_rows, _BLOCK_ROWS))


def _slices(num_rows: int, dim: int, device: torch.device) -> list[slice]:
    size = max(_SLICE_ELEMENTS // dim, 1) if device.type == "cpu" else _BLOCK_ROWS
    return [slice(start, start + size) for start in range(0, num_rows, size)]


def _check_features(features: Tensor, dim: int | None = None) -> None:
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise UsageError(f"Expected a torch tensor of floats (N, D), got {kind}.")
    if features.ndim != 2:
        raise UsageError(
            f"Expected rows of shape (N, D), got {tuple(features.shape)}. One row is (1, D)."
        )
    if dim is not None and features.shape[1] != dim:
        raise UsageError(
            f"Expected features of width {dim}, got {features.shape[1]}. Different backbone?"
        )


def _check_labels(labels: Tensor, num_rows: int, num_classes: int) -> None:
    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if not isinstance(labels, Tensor) or labels.dtype not in integers:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise UsageError(f"Expected a torch tensor of integer labels (N,), got {kind}.")
    if labels.shape != (num_rows,):
        raise UsageError(f"Expected {num_rows} labels, one per row, got {tuple(labels.shape)}.")
    if num_rows and not (int(labels.min()) >= 0 and int(labels.max()) < num_classes):
        raise UsageError(
            f"Labels lie in 0 .. {num_classes - 1} for {num_classes} classes, "
            f"got {int(labels.min())} .. {int(labels.max())}."
        )


def _check_finite_for_fit(features: Tensor) -> None:
    if _sums_are_finite(features):
        return
    bad = int((~torch.isfinite(features).all(dim=1)).sum())
    if bad:
        raise FitError(
            f"{bad} of {len(features)} feature rows hold NaN or infinity. Find the images that "
            "give them and leave them out, or mend the network; nothing was added."
        )


def _sums_are_finite(rows: Tensor) -> bool:
    """True only if every element is finite; False may also be an overflow of a sum.

    Several times faster than looking at every element, which is left for when it is False.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    sums = [rows[part].sum(dtype=wide) for part in _slices(len(rows), rows.shape[1], rows.device)]
    return not sums or bool(torch.isfinite(torch.stack(sums)).all())


def _check_not_empty(statistics: ClassStatistics) -> None:
    if statistics.num_rows == 0:
        raise FitError("No rows were seen, so there is nothing to fit. Call update first.")
