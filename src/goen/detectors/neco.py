"""NECO: the share of a feature in the principal subspace of the training features."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.errors import FitError
from goen.functional._rows import blocks
from goen.functional.class_means import mean_row
from goen.outputs import Outputs


@final
class NECO(Detector):
    r"""Minus the share of the feature within the principal directions; high for OOD.

    :math:`-\frac{\lVert P s(x) \rVert}{\lVert s(x) \rVert} \max_c z_c`, with s the standardisation
    of each feature by its mean and standard deviation over all training rows, and P the first
    principal directions of the standardised training rows, as many as hold ``variance`` of their
    variance. Under neural collapse ID features lie in the subspace of the classes.

    Args:
        variance: the share of the variance, above 0 and at most 1.
        max_logit: multiply by the largest logit. The paper does so but for some transformers.
        feature: which of the outputs' features to measure; the last if not given.

    Paper: Ammar et al. 2024, "NECO: NEural Collapse Based Out-of-distribution detection", ICLR
    2024, arXiv 2310.06823. Departs from the paper: the number of directions is that of 90 % of the
    variance, where the paper chooses it with OOD images for each network. A feature that never
    varies is not divided; an input at the mean has a share of 0.

    It fails on networks far from neural collapse (few epochs), and with ``max_logit`` where the
    largest logit is negative or larger for OOD images.

    Example:
        >>> z = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [2.0, 2.0], [-2.0, -2.0]])
        >>> neco = NECO().fit(Outputs(torch.zeros(4, 1), {"z": z}), torch.zeros(4).long())
        >>> query = torch.tensor([[3.0, 3.0], [3.0, 0.0]])
        >>> neco.score(Outputs(torch.full((2, 1), 5.0), {"z": query}))
        tensor([-5.0000, -3.5355], dtype=torch.float64)
    """

    name: ClassVar[str] = "neco"
    mean_: Tensor
    std_: Tensor
    directions_: Tensor

    def __init__(
        self, *, variance: float = 0.9, max_logit: bool = True, feature: str | None = None
    ) -> None:
        self.variance = variance
        self.max_logit = max_logit
        self.feature = feature
        check_number("variance", variance, above=0, at_most=1)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        rows = self.feature_rows(outputs)
        mean = mean_row(rows)
        cov = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
        for block in blocks(len(rows)):
            centred = rows[block].to(torch.float64) - mean
            cov.addmm_(centred.mT, centred)
        std = (cov.diagonal() / len(rows)).sqrt()
        # What varies by no more than rounding does not vary.
        varies = std > 1e-12 * (1 + mean.abs())
        if not bool(varies.any()):
            raise FitError(
                f"All {len(rows)} training rows are equal, so they have no principal directions. "
                "Give more rows, or check the features."
            )
        std = torch.where(varies, std, 1.0)
        correlation = torch.where(varies[:, None] & varies, cov / len(rows) / std / std[:, None], 0)
        values, vectors = torch.linalg.eigh(correlation)
        share = values.flip(0).clamp_min(0).cumsum(0)
        dim = int((share < self.variance * share[-1] * (1 - 1e-12)).sum()) + 1
        self.mean_, self.std_ = mean, std
        self.directions_ = vectors.flip(1)[:, :dim].contiguous()

    def _expected(self) -> Mapping[str, Expected]:
        width = self.features_width
        return {
            "mean": Expected((width,)),
            "std": Expected((width,), low=torch.finfo(torch.float64).tiny),
            "directions": Expected((width, "directions"), -1 - 1e-6, 1 + 1e-6),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        standard = (self.feature_rows(outputs).to(torch.float64) - self.mean_) / self.std_
        length: Tensor = torch.linalg.vector_norm(standard, dim=1)
        within: Tensor = torch.linalg.vector_norm(standard @ self.directions_, dim=1)
        share = within / length.clamp_min(torch.finfo(torch.float64).tiny)
        largest = outputs.logits.to(torch.float64).amax(dim=1)
        return -share * largest if self.max_logit else -share
