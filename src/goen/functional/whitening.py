"""Mahalanobis distances through a Cholesky whitening, never an explicit inverse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from goen.errors import FitError, UsageError
from goen.functional._rows import blocks, check_features, row_slices, sums_are_finite


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

    @cached_property
    def _means_squared(self) -> Tensor:
        """The squared length of each whitened mean, (K,)."""
        return self.whitened_means.square().sum(dim=1)

    def whiten(self, features: Tensor) -> Tensor:
        """Rows (N, D) under the map, (N, D) float64.

        Raises:
            UsageError: a wrong width, or rows that are not finite.
        """
        check_features(features, self.dim)
        features = features.detach()
        rows = self.centre.new_empty(features.shape)
        for part in row_slices(len(features), self.dim, rows.device):
            torch.sub(features[part].to(rows), self.centre, out=rows[part])
        whitened = rows @ self.precision_chol
        if not sums_are_finite(whitened):
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
        check_features(features, self.dim)
        out = self.centre.new_full((len(features), self.num_classes), math.inf)
        for block in blocks(len(features)):
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
        check_features(features, self.dim)
        if torch.compiler.is_compiling():
            return self._traced_nearest(features)
        parts = [self._nearest_in_block(features[block]) for block in blocks(len(features))]
        if not parts:
            return Nearest(self.centre.new_empty(0), self.classes.new_empty(0))
        return Nearest(
            torch.cat([part.distance for part in parts]), torch.cat([part.label for part in parts])
        )

    def _traced_nearest(self, features: Tensor) -> Nearest:
        """By the product form alone: a traced program cannot choose what to measure again.

        In float64 it is good to 1e-16 of the squared lengths that cancel in it.
        """
        white = (features.to(torch.float64) - self.centre) @ self.precision_chol
        # Nothing of a traced program may be kept: not the property that holds the squared lengths.
        means = self.whitened_means
        cross = (means * means).sum(dim=1) - 2 * white @ means.T
        least, place = cross.min(dim=1)
        squared = (white * white).sum(dim=1) + least
        return Nearest(squared.clamp_min(0), self.classes[place])

    def _nearest_in_block(self, features: Tensor) -> Nearest:
        whitened, means = self.whiten(features), self.whitened_means
        proposal = torch.addmm(self._means_squared, whitened, means.mT, alpha=-2)
        # Bound on the error of a dot product of length D: about D·eps·(|a|² + 2|b|²) here.
        lengths = [
            torch.linalg.vector_norm(whitened[part], dim=1)
            for part in row_slices(len(whitened), self.dim, whitened.device)
        ]
        size = torch.cat(lengths).square() + 2 * self._means_squared.max()
        error = (self.dim + 8) * torch.finfo(torch.float64).eps * size
        least = proposal.amin(dim=1)
        pairs = torch.nonzero((proposal <= (least + 2 * error)[:, None]).flatten()).flatten()
        squared = proposal.fill_(math.inf)
        for part in row_slices(len(pairs), self.dim, pairs.device):
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

    Example:
        >>> whitening = whitener(torch.zeros(1, 2), torch.diag(torch.tensor([4.0, 1.0])))
        >>> whitening.condition_number
        4.0
        >>> whitening.whiten(torch.tensor([[2.0, 3.0]])).tolist()
        [[1.0, 3.0]]
    """
    dim = means.shape[1]
    cov = cov.detach().to(torch.float64)
    means = means.detach().to(cov.device, torch.float64)
    has_mean = ~torch.isnan(means).all(dim=1)
    if not bool(has_mean.any()):
        raise FitError("No class has a mean: nothing was fitted. Give at least one labelled row.")
    present = means[has_mean]
    if not (bool(torch.isfinite(present).all()) and bool(torch.isfinite(cov).all())):
        raise FitError("Means and covariance must be finite. Check the features they come from.")

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
