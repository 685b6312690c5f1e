"""One Gaussian per class with a shared covariance: the distance of GOEN and Mahalanobis."""

import math
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from goen.checks import check_choice, check_number
from goen.detectors._base import Detector
from goen.errors import FitError, UsageError
from goen.functional._rows import blocks
from goen.functional.covariance import ledoit_wolf_shrinkage, oas_shrinkage, tied_covariance
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import Whitening, whitener
from goen.io.limits import CLASSES
from goen.io.tensors import Tensors
from goen.outputs import Outputs

# Of one class: so many that their sums are exact in float64.
_MOST_ROWS = 2**53 // CLASSES
_SHRINKAGES = ("none", "oas", "ledoit_wolf")


class ClassGaussians:
    """Class means and one covariance of a feature, and the distance to the nearest class.

    Attributes:
        statistics: what was fitted.

    Args:
        feature: which of the outputs' features to measure.
        unit_length: divide every feature vector by its length first.
        ridge: added to the diagonal of the covariance.
        relative_ridge: the ridge is a share of the mean variance within a class.
        shrinkage: ``none``, or towards a multiple of the identity by the share that ``oas`` (Chen
            et al. 2010) or ``ledoit_wolf`` (2004) finds. Ledoit and Wolf's needs the features
            twice, so it works with ``fit`` alone.

    Example:
        >>> outputs = Outputs(torch.zeros(4, 2), {"z": torch.eye(2).repeat(2, 1)})
        >>> gaussians = ClassGaussians("z", ridge=0.5).fit(outputs, torch.tensor([0, 1, 0, 1]))
        >>> gaussians.distance(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 4.0]])}))
        tensor([0.8000], dtype=torch.float64)
    """

    def __init__(
        self,
        feature: str,
        *,
        unit_length: bool = True,
        ridge: float = 1e-5,
        relative_ridge: bool = False,
        shrinkage: str = "none",
    ) -> None:
        check_choice("shrinkage", shrinkage, _SHRINKAGES)
        check_number("ridge", ridge, at_least=0)
        self.feature = feature
        self.unit_length = unit_length
        self.ridge = ridge
        self.relative_ridge = relative_ridge
        self.shrinkage = shrinkage
        self._whitening: Whitening | None = None
        self._means: Tensor | None = None
        self._share = 0.0

    def fit(self, outputs: Outputs, labels: Tensor) -> Self:
        """Forget everything and fit these outputs."""
        vars(self).pop("statistics", None)
        for block in blocks(len(outputs)):
            self._add(outputs[block], labels[block])
        if self.shrinkage == "ledoit_wolf":
            rows = ((self.rows(outputs[block]), labels[block]) for block in blocks(len(outputs)))
            self._share = ledoit_wolf_shrinkage(self.statistics, rows)
        return self

    def update(self, outputs: Outputs, labels: Tensor) -> Self:
        """Add these outputs to what was seen: in any chunks, the same result as all at once."""
        if self.shrinkage == "ledoit_wolf":
            raise UsageError("Ledoit-Wolf needs all features at once: use fit, or shrinkage='oas'.")
        return self._add(outputs, labels)

    def _add(self, outputs: Outputs, labels: Tensor) -> Self:
        rows = self.rows(outputs)
        if not hasattr(self, "statistics"):
            classes = outputs.logits.shape[1]
            self.statistics = ClassStatistics(classes, rows.shape[1], device=rows.device)
        self.statistics.update(rows, labels)
        self._whitening = self._means = None
        return self

    def rows(self, outputs: Outputs) -> Tensor:
        """The feature vectors as they are measured, ``(N, D)``."""
        rows = outputs.feature(self.feature)
        return normalise(rows) if self.unit_length else rows

    @property
    def absolute_ridge(self) -> float:
        """What is added to the diagonal of a covariance."""
        return self.ridge * (mean_variance(self.statistics) if self.relative_ridge else 1.0)

    @property
    def whitening_(self) -> Whitening:
        """The fitted distance, computed when first asked for after an update."""
        if self._whitening is None:
            statistics = self.statistics
            share = oas_shrinkage(statistics) if self.shrinkage == "oas" else self._share
            cov = tied_covariance(statistics, self.absolute_ridge, shrinkage=share)
            self._whitening = whitener(statistics.means_, cov)
        return self._whitening

    @property
    def means_(self) -> Tensor:
        """The means of the classes that have one, ``(K, D)``, computed when first asked for."""
        if self._means is None:
            means = self.statistics.means_
            self._means = means[~torch.isnan(means).all(dim=1)]
        return self._means

    def distance(self, outputs: Outputs) -> Tensor:
        """Squared Mahalanobis distance to the nearest class mean, ``(N,)`` float64."""
        return self.whitening_.nearest(self.rows(outputs)).distance

    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt, for an artifact."""
        share = torch.tensor([self._share], dtype=torch.float64, device="cpu")
        return {**self.statistics.state(), "shrinkage": share}

    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        """Take what ``state`` gave.

        Raises:
            ValueError: a tensor that no fitted Gaussians have; the message names it.
        """
        tensors = Tensors.of(state)
        known = ["counts", "mean_high", "mean_low", "within_scatter"]
        tensors.check_names([*known, "shrinkage"])
        longest = 1 + 1e-6 if self.unit_length else math.inf
        means = tensors.floats("mean_high", ("classes", "features"), low=-longest, high=longest)
        classes, width = means.shape
        tensors.integers("counts", (classes,), low=0, high=_MOST_ROWS)
        tensors.floats("mean_low", (classes, width))
        tensors.floats("within_scatter", (width, width))
        self._share = float(tensors.floats("shrinkage", (1,), low=0.0, high=1.0))
        self.statistics = ClassStatistics.from_state({name: tensors[name] for name in known})
        self._whitening = self._means = None
        return self


class GaussianDetector(Detector):
    """A detector that measures one feature by class Gaussians with a relative ridge.

    Args:
        feature: which of the outputs' features to measure; the last if not given.
        normalise: divide every feature vector by its length first.
        ridge: added to the diagonal of each covariance, as a share of the mean variance within a
            class.
    """

    def __init__(
        self, *, feature: str | None = None, normalise: bool = False, ridge: float = 1e-6
    ) -> None:
        self.feature = feature
        self.normalise = normalise
        self.ridge = ridge
        check_number("ridge", ridge, at_least=0)

    def _gaussians(self, outputs: Outputs) -> ClassGaussians:
        """Not fitted yet."""
        return ClassGaussians(
            self.feature_name(outputs),
            unit_length=self.normalise,
            ridge=self.ridge,
            relative_ridge=True,
        )

    def _rows(self, outputs: Outputs) -> Tensor:
        """The feature vectors as they are measured, ``(N, D)``."""
        rows = self.feature_rows(outputs)
        return normalise(rows) if self.normalise else rows


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


def whitening_tensors(whitening: Whitening) -> dict[str, Tensor]:
    """All that a ``Whitening`` holds but the number of classes, by name."""
    return {
        "precision_chol": whitening.precision_chol,
        "centre": whitening.centre,
        "whitened_means": whitening.whitened_means,
        "classes": whitening.classes,
        "condition_number": whitening.centre.new_tensor([whitening.condition_number]).cpu(),
    }


def load_whitening(tensors: Tensors, width: int, num_classes: int) -> Whitening:
    """What ``whitening_tensors`` gave, as a ``Whitening`` again.

    Raises:
        ValueError: tensors of another width or number of classes; the message names one.
    """
    tensors.check_names(
        ["precision_chol", "centre", "whitened_means", "classes", "condition_number"]
    )
    classes = tensors.integers("classes", ("classes",), low=0, high=num_classes - 1)
    if len({*classes.tolist()}) < len(classes):
        raise ValueError(f"its tensor {tensors.prefix}classes should name each class once")
    return Whitening(
        precision_chol=tensors.floats("precision_chol", (width, width)),
        centre=tensors.floats("centre", (width,)),
        whitened_means=tensors.floats("whitened_means", (len(classes), width)),
        classes=classes,
        num_classes=num_classes,
        condition_number=float(tensors.floats("condition_number", (1,), low=1.0)),
    )
