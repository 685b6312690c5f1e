"""Residual: the length of a feature outside the training features' subspace."""

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.functional.subspace import residual_directions, residual_length, zero_logits_point
from goen.outputs import Outputs


@final
class Residual(Detector):
    r"""The length of the feature outside the training features' subspace; high for OOD.

    :math:`\lVert R^\top (x - o) \rVert`, the residual of ViM without the logits: R are the
    directions in which training features are shortest, seen from the point :math:`o = -W^+ b` whose
    logits are nearest to 0, and W and b are those of the outputs' linear classifier.

    Args:
        dim: how many principal directions are not residual. By default 1000 if a feature has more
            than 1500 numbers, 512 if it has 768 to 1500, else half of them.

    Paper: Wang et al. 2022, "ViM: Out-Of-Distribution with Virtual-logit Matching", arXiv
    2203.10807, where it is compared with ViM. Departs from the paper: half of the directions below
    width 768, of which the paper's 512 would leave little. OpenOOD fits it on validation images;
    this one on training images.

    It fails on networks whose features span little more than the classes (neural collapse), and
    where OOD features are shorter than ID features.

    Example:
        >>> import torch
        >>> from goen.outputs import LinearClassifier
        >>> z = torch.tensor([[4.0, 1.0], [-4.0, 1.0], [4.0, -1.0], [-4.0, -1.0]])
        >>> weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        >>> classifier = LinearClassifier(weight, torch.zeros(2), "z")
        >>> outputs = Outputs(z @ weight.T, {"z": z}, classifier=classifier)
        >>> residual = Residual().fit(outputs, torch.tensor([0, 1, 0, 1]))
        >>> far = torch.tensor([[4.0, 0.5], [4.0, 4.0]])
        >>> residual.score(Outputs(far @ weight.T, {"z": far}))
        tensor([0.5000, 4.0000], dtype=torch.float64)
    """

    name: ClassVar[str] = "residual"
    needs_classifier = True
    origin_: Tensor
    residual_: Tensor

    def __init__(self, *, dim: int | None = None) -> None:
        self.dim = dim
        if dim is not None:
            check_number("dim", dim, whole=True, at_least=0)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.origin_ = zero_logits_point(*self.classifier(outputs))
        self.residual_ = residual_directions(self.feature_rows(outputs), self.origin_, self.dim)

    def _expected(self) -> Mapping[str, Expected]:
        width = self.features_width
        return {
            "origin": Expected((width,)),
            "residual": Expected((width, "directions"), -1 - 1e-6, 1 + 1e-6),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        return residual_length(self.feature_rows(outputs), self.origin_, self.residual_)
