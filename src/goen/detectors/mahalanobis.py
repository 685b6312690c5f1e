"""The Mahalanobis distance to the nearest class."""

import math
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from goen.detectors._base import Detector
from goen.errors import FitError, UsageError
from goen.functional._rows import blocks, check_features, check_labels
from goen.functional.covariance import tied_covariance
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import Whitening, whitener
from goen.outputs import Outputs


@final
class Mahalanobis(Detector):
    r"""Squared Mahalanobis distance to the nearest class mean; high for OOD.

    :math:`\min_c (x - \mu_c)^\top \Sigma^{-1} (x - \mu_c)`, with one covariance for all classes.

    Args:
        feature: which of the outputs' features to measure.
        normalise: divide every feature vector by its length first (Mahalanobis++).
        ridge: added to the diagonal of the covariance, as a share of the mean variance: scaling
            all features changes no score. It also keeps features that never vary from breaking
            the fit.

    Paper: Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples
    and Adversarial Attacks"; with ``normalise``, Müller and Hein 2025, "Mahalanobis++".
    Departs from the paper: the ridge; of Lee et al. the distance alone, on one layer, without
    perturbing the images and without a regression over layers.

    Example:
        >>> z = torch.tensor([[-1.0, -2.0], [1.0, 2.0], [8.0, 2.0], [10.0, -2.0]])
        >>> outputs = Outputs(torch.zeros(4, 2), {"z": z})
        >>> detector = Mahalanobis(ridge=0.0).fit(outputs, torch.tensor([0, 0, 1, 1]))
        >>> detector.score(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 2.0]])}))
        tensor([10.], dtype=torch.float64)
    """

    def __init__(self, *, feature: str = "z", normalise: bool = False, ridge: float = 1e-6) -> None:
        self.feature = feature
        self.normalise = normalise
        self.ridge = ridge
        check_ridge(ridge)

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        statistics = class_statistics(outputs, labels, self.feature, self.normalise)
        ridge = self.ridge * mean_variance(statistics)
        return as_tensors(whitener(statistics.means_, tied_covariance(statistics, ridge)))

    def _measure(self, outputs: Outputs) -> Tensor:
        rows = outputs.features[self.feature]
        whitening = from_tensors(self.fitted_ or {})
        return whitening.nearest(normalise(rows) if self.normalise else rows).distance


def check_ridge(ridge: float) -> None:
    if not (math.isfinite(ridge) and ridge >= 0):
        raise UsageError(f"ridge is a share of the mean variance, at least 0, got {ridge}.")


def class_statistics(
    outputs: Outputs, labels: Tensor, feature: str, unit_length: bool
) -> ClassStatistics:
    """The statistics of one feature, of its unit vectors if asked for."""
    rows = outputs.features[feature]
    check_features(rows)
    check_labels(labels, len(rows), outputs.logits.shape[1])
    statistics = ClassStatistics(outputs.logits.shape[1], rows.shape[1], device=rows.device)
    for block in blocks(len(rows)):
        part = normalise(rows[block]) if unit_length else rows[block]
        statistics.update(part, labels[block])
    return statistics


def mean_variance(statistics: ClassStatistics) -> float:
    """Variance within a class, averaged over the features."""
    trace = float(statistics.within_scatter_.trace())
    if trace == 0:
        raise FitError(
            f"No feature varies within a class ({statistics.num_rows} rows in "
            f"{int((statistics.counts_ > 0).sum())} classes), so there is no covariance to measure "
            "by. Give more than one row per class, or check the features."
        )
    return trace / (statistics.num_rows * statistics.dim)


def as_tensors(whitening: Whitening) -> dict[str, Tensor]:
    """All that a ``Whitening`` holds, by name."""
    return {
        "precision_chol": whitening.precision_chol,
        "centre": whitening.centre,
        "whitened_means": whitening.whitened_means,
        "classes": whitening.classes,
        "num_classes": torch.tensor([whitening.num_classes]),
        "condition_number": torch.tensor([whitening.condition_number], dtype=torch.float64),
    }


def from_tensors(tensors: Mapping[str, Tensor]) -> Whitening:
    """The ``Whitening`` again."""
    return Whitening(
        precision_chol=tensors["precision_chol"],
        centre=tensors["centre"],
        whitened_means=tensors["whitened_means"],
        classes=tensors["classes"],
        num_classes=int(tensors["num_classes"]),
        condition_number=float(tensors["condition_number"]),
    )
