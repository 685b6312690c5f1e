"""GOEN's stage 2: class-conditional Gaussians on the unit sphere, and the three cues."""

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from goen.errors import NotFittedError, UsageError, unknown
from goen.functional.covariance import ledoit_wolf_shrinkage, oas_shrinkage, tied_covariance
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
        shrinkage: ``none``, or towards a multiple of the identity by the share that ``oas`` (Chen
            et al. 2010) or ``ledoit_wolf`` (2004) finds. Ledoit and Wolf's needs the features
            twice, so it goes with ``fit`` alone.

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
        self._share = 0.0
        if shrinkage not in ("none", "oas", "ledoit_wolf"):
            raise unknown("shrinkage", shrinkage, ("none", "oas", "ledoit_wolf"))

    def fit(self, outputs: Outputs, labels: Tensor) -> Self:
        """Forget everything and fit these outputs."""
        self.statistics_ = None
        self._add(outputs, labels)
        if self.shrinkage == "ledoit_wolf":
            unit = normalise(outputs.features[self.feature])
            self._share = ledoit_wolf_shrinkage(self._fitted(), [(unit, labels)])
        return self

    def update(self, outputs: Outputs, labels: Tensor) -> Self:
        """Add these outputs to what was seen: in any chunks, the same result as all at once."""
        if self.shrinkage == "ledoit_wolf":
            raise UsageError("Ledoit-Wolf needs all features at once: use fit, or shrinkage='oas'.")
        return self._add(outputs, labels)

    def _add(self, outputs: Outputs, labels: Tensor) -> Self:
        features = outputs.features[self.feature]
        if self.statistics_ is None:
            self.statistics_ = ClassStatistics(outputs.logits.shape[1], features.shape[1])
        self.statistics_.update(normalise(features), labels)
        self._whitening = None
        return self

    @property
    def whitening_(self) -> Whitening:
        """The fitted distance, made when first asked for after an update."""
        statistics = self._fitted()
        if self._whitening is None:
            share = oas_shrinkage(statistics) if self.shrinkage == "oas" else self._share
            cov = tied_covariance(statistics, self.ridge, shrinkage=share)
            self._whitening = whitener(statistics.means_, cov)
        return self._whitening

    def _fitted(self) -> ClassStatistics:
        if self.statistics_ is None:
            raise NotFittedError(
                "This Density is not fitted. Call fit(outputs, labels) or load an artefact."
            )
        return self.statistics_

    def cues(self, outputs: Outputs) -> Tensor:
        """The paper's m = [log(distance + 1), largest similarity, entropy], ``(N, 3)`` float64."""
        unit = normalise(outputs.features[self.feature])
        columns = [
            log_distance(self.whitening_.nearest(unit).distance),
            max_inner_product(unit, self._fitted().means_),
            entropy(outputs.logits),
        ]
        return torch.stack(columns, dim=1)

    def score(self, outputs: Outputs) -> Tensor:
        """The log of the squared distance plus one, ``(N,)`` float64; high for OOD."""
        unit = normalise(outputs.features[self.feature])
        return log_distance(self.whitening_.nearest(unit).distance)

    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt, for an artefact."""
        share = torch.tensor([self._share], dtype=torch.float64)
        return {**self._fitted().state(), "shrinkage": share}

    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        """Take what ``state`` gave."""
        rest = dict(state)
        self._share = float(rest.pop("shrinkage", torch.zeros(1)))
        self.statistics_ = ClassStatistics.from_state(rest)
        self._whitening = None
        return self
