"""CTM: the angle to the nearest class mean."""

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor

from goen.detectors._base import Detector, Expected
from goen.functional.class_means import class_means
from goen.functional.cues import max_inner_product, normalise
from goen.outputs import Outputs


@final
class CTM(Detector):
    r"""Minus the cosine of the angle to the nearest class mean; high for OOD.

    :math:`-\max_c \cos(x, \mu_c)`, with :math:`\mu_c` the mean feature of all training images of
    class c, right or wrong. Features are not normalised before they are averaged.

    Args:
        feature: which of the outputs' features to measure; the last if not given.

    Paper: Ngoc-Hieu et al. 2023, "A Cosine Similarity-based Method for Out-of-Distribution
    Detection" (class typical matching), arXiv 2306.14920. Departs from the paper: nothing.

    It fails where OOD images lie in the same directions at another length, and where classes have
    several clusters.

    Example:
        >>> import torch
        >>> outputs = Outputs(torch.zeros(2, 2), {"z": torch.tensor([[5.0, 0.0], [0.0, 2.0]])})
        >>> detector = CTM().fit(outputs, torch.tensor([0, 1]))
        >>> detector.score(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 4.0]])}))
        tensor([-0.8000], dtype=torch.float64)
    """

    name: ClassVar[str] = "ctm"
    directions_: Tensor

    def __init__(self, *, feature: str | None = None) -> None:
        self.feature = feature

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        means, counts = class_means(self.feature_rows(outputs), labels, self.num_classes_)
        self.directions_ = normalise(means[counts > 0])

    def _expected(self) -> Mapping[str, Expected]:
        return {"directions": Expected(("classes", self.features_width), -1 - 1e-6, 1 + 1e-6)}

    def _score(self, outputs: Outputs) -> Tensor:
        return -max_inner_product(normalise(self.feature_rows(outputs)), self.directions_)
