"""NNGuide: the energy, weighted by the similarity to confident training images."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._bank import ROWS, check_enough_rows, sample_rows
from goen.detectors._base import Detector, Expected
from goen.errors import FitError, warn
from goen.functional._rows import check_finite_for_fit
from goen.functional.cues import normalise
from goen.functional.logits import energy_score
from goen.io.tensors import Tensors
from goen.outputs import Outputs


@final
class NNGuide(Detector):
    r"""Minus the log-sum-exp times the similarity to confident training images; high for OOD.

    :math:`-E(x) \cdot \frac{1}{k} \sum_{i \in N_k(x)} E_i \cos(x, x_i)`, with
    :math:`E = \log \sum_c e^{z_c}` and :math:`N_k` the k rows of the bank for which
    :math:`E_i \cos(x, x_i)` is largest. The bank is a random sample of the training rows, right or
    wrong, of each class alike.

    Args:
        k: how many rows of the bank are averaged.
        rows: the size of the bank; each class has at most its share.
        feature: which of the outputs' features to measure; the last if not given.

    Paper: Park, Jung and Teoh 2023, "Nearest Neighbor Guidance for Out-of-Distribution Detection",
    ICCV 2023, arXiv 2309.14888. Departs from the paper: the bank has a fixed number of rows in
    place of a share of the training set, evenly over classes.

    It fails where log-sum-exps are negative, since the product of two negative ones counts as ID:
    a fit warns of it. Where OOD images have larger logits it fails as the energy does.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> outputs = Outputs(torch.tensor([[2.0], [3.0]]), {"z": z})
        >>> guide = NNGuide(k=1).fit(outputs, torch.tensor([0, 0]))
        >>> guide.score(Outputs(torch.tensor([[4.0]]), {"z": torch.tensor([[3.0, 4.0]])}))
        tensor([-9.6000], dtype=torch.float64)
    """

    name: ClassVar[str] = "nnguide"
    bank_: Tensor
    """Unit vectors times their log-sum-exp, ``(M, D)`` float32."""

    def __init__(self, *, k: int = 10, rows: int = ROWS, feature: str | None = None) -> None:
        self.k = k
        self.rows = rows
        self.feature = feature
        check_number("k", k, whole=True, at_least=1)
        check_number("rows", rows, whole=True, at_least=1)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        check_finite_for_fit(outputs.logits, "logit")
        kept = outputs[sample_rows(labels, self.num_classes_, self.rows)]
        if self.k > len(kept):
            raise FitError(
                f"The mean of k = {self.k} similarities needs as many training rows in the bank, "
                f"and there are {len(kept)}. Lower k or give more rows."
            )
        guidance = -energy_score(kept.logits)
        if bool((guidance < 0).any()):
            warn(
                f"NNGuide multiplies log-sum-exps of logits, and {int((guidance < 0).sum())} of "
                f"{len(kept)} training rows have a negative one, which changes the sign of the "
                "score. Choose another detector, such as knn."
            )
        self.bank_ = (guidance[:, None] * normalise(self.feature_rows(kept))).to(torch.float32)

    def _expected(self) -> Mapping[str, Expected]:
        return {"bank": Expected(("rows", self.features_width), dtype=torch.float32)}

    def _load(self, tensors: Tensors) -> None:
        super()._load(tensors)
        check_enough_rows(tensors, self.bank_, self.k)

    def _score(self, outputs: Outputs) -> Tensor:
        rows = normalise(self.feature_rows(outputs)).to(torch.float32)
        nearest = (rows @ self.bank_.mT).topk(self.k, dim=1).values
        return energy_score(outputs.logits) * nearest.mean(dim=1, dtype=torch.float64)
