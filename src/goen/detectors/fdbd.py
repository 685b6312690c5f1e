"""fDBD: how far the feature is from where the classifier would change its mind."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.detectors._base import Detector, Expected
from goen.errors import FitError, UsageError
from goen.functional._rows import in_blocks
from goen.functional.class_means import mean_row
from goen.functional.logits import check_several_classes
from goen.outputs import Outputs


@final
class FDBD(Detector):
    r"""Minus the mean distance to the boundaries, over that to the middle; high for OOD.

    .. math:: -\frac{1}{\lVert x - \mu \rVert} \cdot \frac{1}{C - 1} \sum_{c \ne \hat y}
              \frac{|z_{\hat y} - z_c|}{\lVert w_{\hat y} - w_c \rVert}

    The feature x would have to move by each summand for class c to overtake the predicted class.
    Far from the mean :math:`\mu` of all training rows, boundaries are farther for every input.

    The weights w are those of the outputs' linear classifier.

    Paper: Liu and Qin 2024, "Fast Decision Boundary based Out-of-Distribution Detector".
    Departs from the paper: classes of equal weights have no boundary between them and are left out
    of each other's mean; an input at the mean itself is taken to be a billionth of the training
    rows' mean distance from it.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        >>> classifier = LinearClassifier(weight, torch.zeros(2), "z")
        >>> z = torch.tensor([[3.0, 0.0], [-3.0, 0.0]])
        >>> outputs = Outputs(z @ weight.T, {"z": z}, classifier=classifier)
        >>> fdbd = FDBD().fit(outputs, torch.tensor([0, 1]))
        >>> query = torch.tensor([[3.0, 4.0]])  # 3 from the boundary, 5 from the mean
        >>> fdbd.score(Outputs(query @ weight.T, {"z": query}))
        tensor([-0.6000], dtype=torch.float64)
    """

    name: ClassVar[str] = "fdbd"
    needs_classifier = True
    mean_: Tensor
    gaps_: Tensor
    least_distance_: Tensor

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        rows = self.feature_rows(outputs)
        check_several_classes(outputs.logits)
        weight, _ = self.classifier(outputs)
        if bool((weight == weight[0]).all()):
            raise UsageError("All classes have the same weights: there is no boundary to measure.")
        mean = mean_row(rows)
        distance = in_blocks(lambda block: _length(rows[block], mean), rows).mean()
        if float(distance) == 0:
            raise FitError(
                f"All {len(rows)} training rows are equal, so no distance from their mean can be "
                "measured. Give more rows, or check the features."
            )
        # Without products, so that equal weights have a gap of exactly 0.
        self.gaps_ = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        self.mean_, self.least_distance_ = mean, 1e-9 * distance[None]

    def _expected(self) -> Mapping[str, Expected]:
        return {
            "mean": Expected((self.features_width,)),
            "gaps": Expected((self.num_classes_, self.num_classes_), low=0.0),
            "least_distance": Expected((1,), low=torch.finfo(torch.float64).tiny),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        rows = self.feature_rows(outputs)
        largest, predicted = outputs.logits.to(torch.float64).max(dim=1, keepdim=True)
        gaps = self.gaps_.index_select(0, predicted.flatten())
        has_boundary = gaps > 0  # so not the predicted class with itself
        steps = torch.where(has_boundary, (largest - outputs.logits) / gaps, 0.0)
        mean_step = steps.sum(dim=1) / has_boundary.sum(dim=1)
        return -mean_step / torch.maximum(_length(rows, self.mean_), self.least_distance_)


def _length(rows: Tensor, mean: Tensor) -> Tensor:
    """How far each row ``(N, D)`` is from the mean, ``(N,)`` float64."""
    length: Tensor = torch.linalg.vector_norm(rows.to(torch.float64) - mean, dim=1)
    return length
