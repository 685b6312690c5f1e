"""A Gaussian mixture for each class."""

import math
import warnings
from collections.abc import Iterator
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector
from goen.detectors._gaussians import (
    class_statistics,
    load_whitening,
    mean_variance,
    whitening_tensors,
)
from goen.functional.covariance import oas_shrinkage, tied_covariance
from goen.functional.cues import normalise
from goen.functional.logits import energy_score
from goen.functional.whitening import Whitening, whitener
from goen.io.tensors import Tensors
from goen.outputs import Outputs

# On the variances of a component: as if a class had so many rows more that spread as all classes
# do. Without it ten rows of a class are far too narrow; with thousands it changes nothing.
_PRIOR_ROWS = 5
# Training rows of a class for each of its components.
_ROWS_PER_COMPONENT = 10
# Far below every variance that a fit gives: five over the rows of the class are added to it.
_LEAST_VARIANCE = 1e-12
# Added to the diagonal of the covariance, as a share of the mean variance.
_RIDGE = 1e-6


@final
class ClassMixture(Detector):
    r"""Negative log-density of a mixture of Gaussians for each class; high for OOD.

    .. math:: -\log \sum_c \pi_c \sum_k w_{ck} \, \mathcal{N}(x; m_{ck}, \Sigma_{ck})

    with x the feature at unit length, as in the paper's distance, and :math:`\pi_c` the share of
    class c in the training rows. It is the density of all classes together, not that of the nearest
    one: a density is what the method estimates, and where classes overlap their densities add up.
    The two differ by :math:`\log C` at most.

    The covariance that all classes share, shrunk as Chen et al. do, whitens the rows; in that space
    a component has a diagonal covariance. So with one component of variance 1 per class the score
    is half the squared Mahalanobis distance but for a constant, and a class with few rows, of which
    no full covariance could be known, stays close to that. Mixtures are fitted by scikit-learn,
    with the number of components that the BIC of the training rows prefers.

    Args:
        feature: which of the outputs' features to measure; the last if not given.
        components: at most so many per class; a class has one for every ten rows, at most.

    Paper: none; GOEN's outlook names densities other than the Mahalanobis distance. The covariance
    is shrunk as in Chen et al. 2010, "Shrinkage Algorithms for MMSE Covariance Estimation".

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> z = 5 * torch.eye(2).repeat(50, 1) + torch.randn(100, 2, generator=draw)
        >>> outputs = Outputs(torch.zeros(100, 2), {"z": z})
        >>> detector = ClassMixture().fit(outputs, torch.arange(100) % 2)
        >>> tested = Outputs(torch.zeros(2, 2), {"z": torch.tensor([[5.0, 0.0], [1.0, 1.0]])})
        >>> near, between = detector.score(tested)
        >>> bool(near < between)
        True
    """

    name: ClassVar[str] = "class_mixture"
    whitening_: Whitening
    means_: Tensor
    """Of all components of all classes, whitened, ``(K, D)``."""
    variances_: Tensor
    weights_: Tensor
    """The share of a component in all training rows, ``(K,)``."""

    def __init__(self, *, feature: str | None = None, components: int = 4) -> None:
        self.feature = feature
        self.components = components
        check_number("components", components, whole=True, at_least=1)

    def _unit_rows(self, outputs: Outputs) -> Tensor:
        return normalise(self.feature_rows(outputs))

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        statistics = class_statistics(outputs, labels, self._unit_rows)
        ridge = _RIDGE * mean_variance(statistics)
        cov = tied_covariance(statistics, ridge, shrinkage=oas_shrinkage(statistics))
        self.whitening_ = whitener(statistics.means_, cov)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for number in self.whitening_.classes.tolist():
            rows = self.whitening_.whiten(self._unit_rows(outputs[labels == number]))
            means, variances, weights = _class_mixture(rows, self.components)
            found.append((means, variances, weights * (len(rows) / len(outputs))))
        self.means_, self.variances_, self.weights_ = map(torch.cat, zip(*found, strict=True))

    def _prepare(self) -> None:
        """Of each component, what is to be multiplied with x and x², and what is to be added."""
        self._precisions = self.variances_.reciprocal()
        self._linear = self.means_ * self._precisions
        squares = (self.means_ * self._linear).sum(dim=1) + self.variances_.log().sum(dim=1)
        normaliser = squares + self.means_.shape[1] * math.log(2 * math.pi)
        scale = self.whitening_.precision_chol.diagonal().abs().log().sum()
        self._offset = self.weights_.log() - normaliser / 2 + scale

    def state(self) -> dict[str, Tensor]:
        whitening = {f"whitening.{k}": v for k, v in whitening_tensors(self.whitening_).items()}
        return {**super().state(), **whitening}

    def _load(self, tensors: Tensors) -> None:
        whitening = tensors.part("whitening.")
        tensors.check_names(
            ["means", "variances", "weights", *(f"whitening.{name}" for name in whitening)]
        )
        width = self.features_width
        self.whitening_ = load_whitening(whitening, width, self.num_classes_)
        if not bool(self.whitening_.precision_chol.diagonal().all()):
            raise ValueError(
                f"its tensor {whitening.prefix}precision_chol should have no 0 on its diagonal"
            )
        self.means_ = tensors.floats("means", ("components", width))
        shape = self.means_.shape
        self.variances_ = tensors.floats("variances", tuple(shape), low=_LEAST_VARIANCE)
        self.weights_ = tensors.floats("weights", (shape[0],), low=0.0, high=1.0)

    def _score(self, outputs: Outputs) -> Tensor:
        return energy_score(self._log_joint(self._unit_rows(outputs)))

    def _log_joint(self, unit: Tensor) -> Tensor:
        """The logarithm of weight times density of each component, ``(N, K)``."""
        rows = (unit - self.whitening_.centre) @ self.whitening_.precision_chol
        squares = (rows * rows) @ self._precisions.mT
        return rows @ self._linear.mT - squares / 2 + self._offset


def _class_mixture(rows: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variances ``(K, D)`` and weights ``(K,)`` of the mixture with the least BIC.

    More components are tried as long as each lowers the BIC.
    """
    best = None
    for mixture, bic in _mixtures(rows, most):
        if best is not None and bic >= best[1]:
            break
        best = mixture, bic
    assert best is not None, "there is always the mixture of one component"
    return best[0]


def _mixtures(rows: Tensor, most: int) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], float]]:
    """Mixtures of 1, 2, ... components, with their BIC."""
    from sklearn.mixture import GaussianMixture  # takes half a second, and only a fit needs it

    values = rows.cpu().numpy()
    # scikit-learn wants two rows; two equal ones have the mean and the spread of one.
    values = values.repeat(2, axis=0) if len(values) == 1 else values
    for count in range(1, max(min(most, len(rows) // _ROWS_PER_COMPONENT), 1) + 1):
        mixture = GaussianMixture(
            count,
            covariance_type="diag",
            reg_covar=min(_PRIOR_ROWS / len(rows), 1.0),
            random_state=0,
        )
        with warnings.catch_warnings():
            # Of EM stopped at its last step and of fewer distinct rows than components: the BIC
            # compares what was reached.
            warnings.simplefilter("ignore")
            mixture.fit(values)
        parts = (mixture.means_, mixture.covariances_, mixture.weights_)
        means, variances, weights = (
            torch.from_numpy(part).to(rows.device, torch.float64) for part in parts
        )
        yield (means, variances, weights), float(mixture.bic(values))
