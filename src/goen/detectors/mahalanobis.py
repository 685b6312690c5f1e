"""The Mahalanobis distance to the nearest class."""

from typing import ClassVar, final

from torch import Tensor

from goen.detectors._gaussians import (
    GaussianDetector,
    class_statistics,
    load_whitening,
    mean_variance,
    whitening_tensors,
)
from goen.functional.covariance import tied_covariance
from goen.functional.whitening import Whitening, whitener
from goen.io.tensors import Tensors
from goen.outputs import Outputs


@final
class Mahalanobis(GaussianDetector):
    r"""Squared Mahalanobis distance to the nearest class mean; high for OOD.

    :math:`\min_c (x - \mu_c)^\top \Sigma^{-1} (x - \mu_c)`, with one covariance for all classes.

    Args:
        feature: which of the outputs' features to measure; the last if not given.
        normalise: divide every feature vector by its length first (Mahalanobis++).
        ridge: added to the diagonal of the covariance, as a share of the mean variance: scaling
            all features changes no score. It also keeps features that never vary from breaking
            the fit.

    Paper: Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples
    and Adversarial Attacks"; with ``normalise``, Müller and Hein 2025, "Mahalanobis++".
    Departs from the paper: the ridge; of Lee et al. the distance alone, on one layer, without
    perturbing the images and without a regression over layers.

    Example:
        >>> import torch
        >>> z = torch.tensor([[-1.0, -2.0], [1.0, 2.0], [8.0, 2.0], [10.0, -2.0]])
        >>> outputs = Outputs(torch.zeros(4, 2), {"z": z})
        >>> detector = Mahalanobis(ridge=0.0).fit(outputs, torch.tensor([0, 0, 1, 1]))
        >>> detector.score(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 2.0]])}))
        tensor([10.], dtype=torch.float64)
    """

    name: ClassVar[str] = "mahalanobis"
    whitening_: Whitening

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        statistics = class_statistics(outputs, labels, self._rows)
        cov = tied_covariance(statistics, self.ridge * mean_variance(statistics))
        self.whitening_ = whitener(statistics.means_, cov)

    def state(self) -> dict[str, Tensor]:
        return whitening_tensors(self.whitening_)

    def _load(self, tensors: Tensors) -> None:
        self.whitening_ = load_whitening(tensors, self.features_width, self.num_classes_)

    def _score(self, outputs: Outputs) -> Tensor:
        return self.whitening_.nearest(self._rows(outputs)).distance
