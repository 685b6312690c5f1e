"""The relation graph: how many training images are alike in feature and in prediction."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._bank import ROWS, sample_rows
from goen.detectors._base import Detector, Expected
from goen.functional._rows import check_finite_for_fit
from goen.functional.cues import normalise
from goen.outputs import Outputs


@final
class Relation(Detector):
    r"""Minus the mean relation to the training images; high for OOD.

    :math:`-\frac{1}{M} \sum_i r_i^{\,t} \, [r_i > \theta]`, with
    :math:`r_i = \max(0, \cos(x, x_i)) \cdot (p \cdot p_i)`: the cosine of two features times the
    inner product of the two predictions (softmax). The M training rows are a random sample, right
    or wrong, of each class alike.

    Args:
        power: t, above 0.
        threshold: weaker relations do not count; at least 0.
        rows: the size of the sample; each class has at most its share.
        feature: which of the outputs' features to measure; the last if not given.

    Paper: Kim et al. 2023, "Neural Relation Graph: A Unified Framework for Identifying Label Noise
    and Outlier Data", NeurIPS 2023, arXiv 2301.12321. Departs from the paper: the mean over a
    sample in place of the sum over all training images.

    It fails where the classifier is sure of OOD images whose features are near the ID images', and
    ties images related to no row of the sample.

    Example:
        >>> outputs = Outputs(torch.zeros(2, 2), {"z": torch.eye(2)})
        >>> relation = Relation().fit(outputs, torch.tensor([0, 1]))
        >>> relation.score(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 4.0]])}))
        tensor([-0.3500], dtype=torch.float64)
    """

    name: ClassVar[str] = "relation"
    bank_: Tensor
    probabilities_: Tensor

    def __init__(
        self,
        *,
        power: float = 1.0,
        threshold: float = 0.03,
        rows: int = ROWS,
        feature: str | None = None,
    ) -> None:
        self.power = power
        self.threshold = threshold
        self.rows = rows
        self.feature = feature
        check_number("power", power, above=0)
        check_number("threshold", threshold, at_least=0, below=1)
        check_number("rows", rows, whole=True, at_least=1)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        check_finite_for_fit(outputs.logits, "logit")
        kept = outputs[sample_rows(labels, self.num_classes_, self.rows)]
        self.bank_ = normalise(self.feature_rows(kept)).to(torch.float32)
        self.probabilities_ = torch.softmax(kept.logits.to(torch.float64), dim=1).float()

    def _expected(self) -> Mapping[str, Expected]:
        floats = torch.float32
        return {
            "bank": Expected(("rows", self.features_width), -1 - 1e-6, 1 + 1e-6, floats),
            "probabilities": Expected(("rows", self.num_classes_), 0.0, 1 + 1e-6, floats),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        rows = normalise(self.feature_rows(outputs)).to(torch.float32)
        probabilities = torch.softmax(outputs.logits.to(torch.float32), dim=1)
        relation = (rows @ self.bank_.mT).clamp_min_(0).mul_(probabilities @ self.probabilities_.mT)
        # A relation that is not finite is not below the threshold: it must not be left out.
        counted = relation.masked_fill_(relation <= self.threshold, 0.0)
        powered = counted if self.power == 1 else counted.pow(self.power)
        return -powered.mean(dim=1, dtype=torch.float64)
