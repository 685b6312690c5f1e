"""fDBD: how far the feature is from where the classifier would change its mind."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from goen.detectors._base import SimpleDetector
from goen.errors import FitError, UsageError
from goen.functional._rows import check_finite_for_fit
from goen.functional.logits import check_classified, check_several_classes, check_weight
from goen.outputs import Outputs
from goen.runs.tensors import Tensors


@final
class FDBD(SimpleDetector):
    r"""Minus the mean distance to the boundaries, over that to the middle; high for OOD.

    .. math:: -\frac{1}{\lVert x - \mu \rVert} \cdot \frac{1}{C - 1} \sum_{c \ne \hat y}
              \frac{|z_{\hat y} - z_c|}{\lVert w_{\hat y} - w_c \rVert}

    The feature x would have to move by each summand for class c to overtake the predicted class.
    Far from the mean :math:`\mu` of all training rows, boundaries are farther for every input.

    Args:
        weight: of the linear classifier behind the feature, ``(C, D)``.
        feature: what the classifier reads; the last of the outputs' features if not given.

    Paper: Liu and Qin 2024, "Fast Decision Boundary based Out-of-Distribution Detector".
    Departs from the paper: classes of equal weights have no boundary between them and are left out
    of each other's mean; an input at the mean itself is taken to be a billionth of the training
    rows' mean distance from it.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        >>> z = torch.tensor([[3.0, 0.0], [-3.0, 0.0]])
        >>> fdbd = FDBD(weight=weight)
        >>> fdbd = fdbd.fit(Outputs(z @ weight.T, {"z": z}), torch.tensor([0, 1]))
        >>> query = torch.tensor([[3.0, 4.0]])  # 3 from the boundary, 5 from the mean
        >>> fdbd.score(Outputs(query @ weight.T, {"z": query}))
        tensor([-0.6000], dtype=torch.float64)
    """

    def __init__(self, *, weight: Tensor, feature: str | None = None) -> None:
        self.weight = weight
        self.feature = feature
        check_weight(weight)

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        rows = self.rows(outputs)
        check_several_classes(outputs.logits)
        check_classified(rows, outputs.logits, self.weight)
        check_finite_for_fit(rows)
        weight = self.weight.detach().to(rows.device, torch.float64)
        if bool((weight == weight[0]).all()):
            raise UsageError("All classes have the same weights: there is no boundary to measure.")
        wide = rows.to(torch.float64)
        # From the first row, as an average of large equal numbers would round.
        mean = wide[0] + (wide - wide[0]).mean(dim=0)
        distance = torch.linalg.vector_norm(wide - mean, dim=1).mean()
        if float(distance) == 0:
            raise FitError(
                f"All {len(rows)} training rows are equal, so no distance from their mean can be "
                "measured. Give more rows, or check the features."
            )
        # Without products, so that equal weights have a gap of exactly 0.
        gaps = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        return {"mean": mean, "gaps": gaps, "least_distance": 1e-9 * distance[None]}

    def _check_state(self, tensors: Tensors) -> None:
        classes, width = self.weight.shape
        tensors.check_names(["mean", "gaps", "least_distance"])
        tensors.floats("mean", (width,))
        tensors.floats("gaps", (classes, classes), low=0.0)
        tensors.floats("least_distance", (1,), low=torch.finfo(torch.float64).tiny)

    def _measure(self, outputs: Outputs) -> Tensor:
        rows = self.rows(outputs)
        check_classified(rows, outputs.logits, self.weight)
        fitted = self.fitted_ or {}
        largest, predicted = outputs.logits.to(torch.float64).max(dim=1, keepdim=True)
        gaps = fitted["gaps"].index_select(0, predicted.flatten())
        has_boundary = gaps > 0  # so not the predicted class with itself
        steps = torch.where(has_boundary, (largest - outputs.logits) / gaps, 0.0)
        mean_step = steps.sum(dim=1) / has_boundary.sum(dim=1)
        distance = torch.linalg.vector_norm(rows.to(torch.float64) - fitted["mean"], dim=1)
        return -mean_step / torch.maximum(distance, fitted["least_distance"])
