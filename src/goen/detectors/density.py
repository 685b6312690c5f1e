"""GOEN's stage 2: class-conditional Gaussians on the unit sphere, and the three cues."""

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from goen.errors import NotFittedError
from goen.functional.covariance import oas_shrinkage, tied_covariance
from goen.functional.cues import entropy, log_distance, max_inner_product, normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import Whitening, whitener
from goen.outputs import Outputs

CUES = ("log_distance", "similarity", "entropy")


class Density:
    """Distance to the nearest class in the space of one normalised feature; high for OOD.

    Paper: GOEN §5.2, which is Mahalanobis++ (Müller and Hein 2025) on the feature z, with a ridge.
    Departs from the paper: nothing. ``shrinkage="oas"`` is an addition.

    Args:
        feature: which of the outputs' features to measure.
        ridge: added to the diagonal of the covariance of the unit vectors.
        shrinkage: ``none``, or ``oas`` to shrink the covariance towards a multiple of the identity
            by the share that OAS (Chen et al. 2010) finds.

    Example:
        >>> unit = torch.eye(2).repeat(20, 1) + 0.1 * torch.randn(40, 2)
        >>> outputs = Outputs(torch.zeros(40, 2), {"z": unit})
        >>> density = Density().fit(outputs, torch.arange(40) % 2)
        >>> density.cues(outputs).shape
        torch.Size([40, 3])
    """

    def __init__(self, *, feature: str = "z", ridge: float = 1e-5, shrinkage: str = "none") -> None:
        self.feature = feature
        self.ridge = ridge
        self.shrinkage = shrinkage
        self.statistics_: ClassStatistics | None = None
        self._whitening: Whitening | None = None

    def fit(self, outputs: Outputs, labels: Tensor) -> Self:
        """Forget everything and fit these outputs."""
        self.statistics_ = None
        return self.update(outputs, labels)

    def update(self, outputs: Outputs, labels: Tensor) -> Self:
        """Add these outputs to what was seen: in any chunks, the same result as all at once."""
        features = outputs.features[self.feature]
        if self.statistics_ is None:
            self.statistics_ = ClassStatistics(outputs.logits.shape[1], features.shape[1])
        self.statistics_.update(normalise(features), labels)
        self._whitening = None
        return self

    @property
    def whitening_(self) -> Whitening:
        """The fitted distance, made when first asked for after an update."""
        if self.statistics_ is None:
            raise NotFittedError(
                "This Density is not fitted. Call fit(outputs, labels) or load an artefact."
            )
        if self._whitening is None:
            share = oas_shrinkage(self.statistics_) if self.shrinkage == "oas" else 0.0
            cov = tied_covariance(self.statistics_, self.ridge, shrinkage=share)
            self._whitening = whitener(self.statistics_.means_, cov)
        return self._whitening

    def cues(self, outputs: Outputs) -> Tensor:
        """The paper's m = [log(distance + 1), largest similarity, entropy], ``(N, 3)`` float64."""
        whitening = self.whitening_
        assert self.statistics_ is not None  # or whitening_ had raised
        unit = normalise(outputs.features[self.feature])
        columns = [
            log_distance(whitening.nearest(unit).distance),
            max_inner_product(unit, self.statistics_.means_),
            entropy(outputs.logits),
        ]
        return torch.stack(columns, dim=1)

    def score(self, outputs: Outputs) -> Tensor:
        """The log of the squared distance plus one, ``(N,)`` float64; high for OOD."""
        unit = normalise(outputs.features[self.feature])
        return log_distance(self.whitening_.nearest(unit).distance)

    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt, for an artefact."""
        if self.statistics_ is None:
            raise NotFittedError("This Density is not fitted. Call fit(outputs, labels) first.")
        return self.statistics_.state()

    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        """Take what ``state`` gave."""
        self.statistics_ = ClassStatistics.from_state(state)
        self._whitening = None
        return self
