"""Class-conditional Gaussians: their sufficient statistics, streamed in float64.

    statistics = ClassStatistics(num_classes, dim)          one pass, any chunking, mergeable
    cov = tied_covariance(statistics, ridge=1e-5)           covariance.py
    whitening = whitener(statistics.means_, cov)            whitening.py
    distance, label = whitening.nearest(features)           min over classes, and which class

Paper: GOEN, §5.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from goen.errors import FitError, UsageError
from goen.functional._rows import (
    blocks,
    check_features,
    check_finite_for_fit,
    check_labels,
    row_slices,
    two_sum,
)


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

    Paper: GOEN §5.2. Departs from the paper: nothing; the paper leaves the summation open.

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
        # Tensors made in inference mode could not be added to outside of it.
        with torch.inference_mode(False):
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
            UsageError: an invalid shape, type or label.
        """
        check_features(features, self.dim)
        check_labels(labels, len(features), self.num_classes)
        check_finite_for_fit(features)
        labels = labels.detach().to(self._counts.device, torch.int64)
        for block in blocks(len(features)):
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
        slices = row_slices(len(features), self.dim, high.device)
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
        high, low = two_sum(high, low + delta * share)
        self._mean_high.index_copy_(0, classes, high)
        self._mean_low.index_copy_(0, classes, low)
        self._counts.index_copy_(0, classes, num_both)
        return delta * (num_old[:, None] * share).sqrt()

    # -- reading -----------------------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        """N, the number of rows seen."""
        return int(self._counts.sum())

    def require_rows(self) -> None:
        """Raise a FitError if nothing was seen."""
        if self.num_rows == 0:
            raise FitError("No rows were seen, so there is nothing to fit. Call update first.")

    @property
    def counts_(self) -> Tensor:
        """Rows seen per class, (C,) int64."""
        return self._counts.clone()

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
        self.require_rows()
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

    def with_classes(self, num_classes: int) -> Self:
        """A copy for so many classes, of which the further ones have no rows yet.

        Example:
            >>> ClassStatistics(2, 3).with_classes(4)
            ClassStatistics(num_classes=4, dim=3: 0 rows, 0 classes seen)
        """
        copied = type(self)(num_classes, self.dim, device=self._counts.device)
        copied._counts[: self.num_classes] = self._counts
        copied._mean_high[: self.num_classes] = self._mean_high
        copied._mean_low[: self.num_classes] = self._mean_low
        copied._scatter.copy_(self._scatter)
        return copied

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The statistics that `state()` described, bit for bit."""
        means = state["mean_high"]
        loaded = cls(*means.shape, device=means.device)
        loaded._counts.copy_(state["counts"])
        loaded._mean_high.copy_(means)
        loaded._mean_low.copy_(state["mean_low"])
        loaded._scatter.copy_(state["within_scatter"])
        return loaded
