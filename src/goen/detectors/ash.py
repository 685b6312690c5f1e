"""ASH: the energy of pruned features."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from goen.checks import check_choice, check_number
from goen.detectors._bank import ROWS, sample_rows
from goen.detectors._base import Detector, Expected
from goen.functional._rows import floats
from goen.functional.logits import energy_score, linear_logits
from goen.functional.shaping import binarise, harmless_percentile, kept_count, prune, sharpness
from goen.outputs import Outputs

Treatment = Literal["scale", "binarise", "prune"]


@final
class ASH(Detector):
    r"""The energy of the logits of pruned features; high for OOD.

    :math:`-\log \sum_c e^{w_c \cdot a(x) + b_c}`, w and b those of the outputs' linear classifier.
    Of each image, a(x) keeps the largest entries of the pooled feature, k of n, and sets the others
    to 0; then the kept ones are

    - prune (ASH-P): left as they are,
    - binarise (ASH-B): all set to s / k, with s the sum of all entries before,
    - scale (ASH-S): multiplied by :math:`e^{s / s_k}`, with :math:`s_k` the sum of the kept ones.

    Args:
        treatment: what is done to the kept entries.
        percentile: of the entries of an image that are removed, from 0, below 100. By default the
            highest of 5, 10, ... 95 that leaves 99 % of the predictions of training images as they
            are.

    Paper: Djurisic et al. 2023, "Extremely Simple Activation Shaping for Out-of-Distribution
    Detection", ICLR 2023, arXiv 2209.09858. Departs from the paper: the default percentile, which
    the paper chooses with OOD images (ImageNet: 60 for P, 65 for B, 90 for S); the pooled feature,
    as in OpenOOD, where the paper shapes the map before pooling; in s and :math:`s_k` of ASH-S
    negative entries count as 0.

    It is made for features behind a ReLU and average pooling, and fails, or ranks the wrong way
    round, on others: transformers, GELU, small networks whose OOD features are longer. A fit warns
    of negative features.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> z = torch.tensor([[3.0, 1.0]])
        >>> classifier = LinearClassifier(torch.eye(2), torch.zeros(2), "z")
        >>> outputs = Outputs(z, {"z": z}, classifier=classifier)
        >>> ash = ASH(treatment="binarise", percentile=50).fit(outputs, torch.tensor([0]))
        >>> ash.score(outputs)  # of (4, 0)
        tensor([-4.0181], dtype=torch.float64)
    """

    name: ClassVar[str] = "ash"
    needs_classifier = True
    made_for_relu = True
    weight_: Tensor
    bias_: Tensor
    percentile_: Tensor

    def __init__(self, *, treatment: Treatment = "scale", percentile: float | None = None) -> None:
        self.treatment = treatment
        self.percentile = percentile
        check_choice("treatment", treatment, get_args(Treatment))
        if percentile is not None:
            check_number("percentile", percentile, at_least=0, below=100)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.weight_, self.bias_ = self.classifier(outputs)
        percentile = self.percentile
        if percentile is None:
            sample = outputs[sample_rows(labels, self.num_classes_, ROWS)]
            rows = floats(self.feature_rows(sample))
            percentile = harmless_percentile(
                lambda q: self._logits(rows, q).argmax(dim=1), self._plain(rows).argmax(dim=1)
            )
        self.percentile_ = torch.tensor(percentile, dtype=torch.float64, device="cpu")

    def _prepare(self) -> None:
        self._percentile = float(self.percentile_)

    def _expected(self) -> Mapping[str, Expected]:
        return {
            "weight": Expected((self.num_classes_, self.features_width)),
            "bias": Expected((self.num_classes_,)),
            "percentile": Expected((), 0.0, 100.0),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        rows = floats(self.feature_rows(outputs))
        return energy_score(self._logits(rows, self._percentile))

    def _logits(self, rows: Tensor, percentile: float) -> Tensor:
        count = kept_count(rows.shape[1], percentile)
        if self.treatment == "binarise":
            return self._plain(binarise(rows, count))
        kept = prune(rows, count)
        if self.treatment == "prune":
            return self._plain(kept)
        return self._plain(kept, sharpness(rows, count).to(torch.float64).exp())

    def _plain(self, rows: Tensor, scale: Tensor | None = None) -> Tensor:
        return linear_logits(rows, self.weight_, self.bias_, scale)
