"""SCALE and LTS: the energy of features or logits that are scaled by how even a feature is."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.functional._rows import floats
from goen.functional.logits import energy_score, linear_logits
from goen.functional.shaping import kept_count, sharpness
from goen.outputs import Outputs


@final
class SCALE(Detector):
    r"""The energy of the logits of scaled features; high for OOD.

    :math:`-\log \sum_c e^{r \, w_c \cdot x + b_c}`, :math:`r = e^{s / s_k}`, with s the sum of the
    entries of the pooled feature x, :math:`s_k` that of its k largest, and w and b those of the
    outputs' linear classifier. It is ASH-S without pruning.

    Args:
        percentile: of the entries of an image that are not among the k, from 0, below 100.

    Paper: Xu et al. 2024, "Scaling for Training Time and Post-hoc Out-of-distribution Detection
    Enhancement", ICLR 2024, arXiv 2310.00227. Departs from the paper: the pooled feature, as in
    OpenOOD; negative entries count as 0 in both sums. 85 is the paper's percentile for ImageNet.
    No choice from ID images is possible, since predictions hardly depend on it.

    It is made for features behind a ReLU and average pooling, and fails, or ranks the wrong way
    round, on others: transformers, GELU, small networks whose OOD features are longer. A fit warns
    of negative features. Nothing is learnt from the training images.

    Example:
        >>> import torch
        >>> from goen.outputs import LinearClassifier
        >>> z = torch.tensor([[3.0, 1.0], [2.0, 2.0]])
        >>> classifier = LinearClassifier(torch.eye(2), torch.zeros(2), "z")
        >>> outputs = Outputs(z, {"z": z}, classifier=classifier)
        >>> scale = SCALE(percentile=50).fit(outputs, torch.tensor([0, 1]))
        >>> scale.score(outputs)
        tensor([-11.3815, -15.4713], dtype=torch.float64)
    """

    name: ClassVar[str] = "scale"
    needs_classifier = True
    made_for_relu = True
    weight_: Tensor
    bias_: Tensor

    def __init__(self, *, percentile: float = 85.0) -> None:
        self.percentile = percentile
        check_number("percentile", percentile, at_least=0, below=100)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.weight_, self.bias_ = self.classifier(outputs)

    def _expected(self) -> Mapping[str, Expected]:
        return {
            "weight": Expected((self.num_classes_, self.features_width)),
            "bias": Expected((self.num_classes_,)),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        rows = floats(self.feature_rows(outputs))
        ratio = sharpness(rows, kept_count(rows.shape[1], self.percentile)).to(torch.float64).exp()
        return energy_score(linear_logits(rows, self.weight_, self.bias_, ratio))


@final
class LTS(Detector):
    r"""The energy of scaled logits; high for OOD.

    :math:`-\log \sum_c e^{z_c (s / s_k)^2}`, with s the sum of the positive entries of the pooled
    feature and :math:`s_k` that of its k largest. As in SCALE the factor is larger for even
    features; it multiplies the logits, bias included, so that no weights are needed.

    Args:
        percentile: of the entries of an image that are not among the k, from 0, below 100.
        feature: which of the outputs' features to measure; the last if not given.

    Paper: Djurisic et al. 2024, "Logit Scaling for Out-of-Distribution Detection", arXiv
    2409.01175. Departs from the paper: nothing; the largest 5 %, as in the paper. Negative entries
    count as 0, as in its code.

    It fails as SCALE does, and where logits are negative. A fit warns of negative features. Nothing
    is learnt from the training images.

    Example:
        >>> import torch
        >>> z = torch.tensor([[3.0, 1.0], [2.0, 2.0]])
        >>> outputs = Outputs(torch.tensor([[9.0], [9.0]]), {"z": z})
        >>> LTS(percentile=50).fit(outputs, torch.tensor([0, 0])).score(outputs)
        tensor([-16.0000, -36.0000], dtype=torch.float64)
    """

    name: ClassVar[str] = "lts"
    made_for_relu = True

    def __init__(self, *, percentile: float = 95.0, feature: str | None = None) -> None:
        self.percentile = percentile
        self.feature = feature
        check_number("percentile", percentile, at_least=0, below=100)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        pass

    def _score(self, outputs: Outputs) -> Tensor:
        rows = floats(self.feature_rows(outputs))
        factor = sharpness(rows, kept_count(rows.shape[1], self.percentile)).square()
        return energy_score(floats(outputs.logits) * factor)
