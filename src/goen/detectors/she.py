"""SHE: how similar a feature is to the usual one of its predicted class."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final, get_args

import torch
from torch import Tensor

from goen.checks import check_choice
from goen.detectors._base import Detector, Expected
from goen.errors import FitError
from goen.functional._rows import check_finite_for_fit
from goen.functional.class_means import class_means, correct_classes
from goen.functional.cues import normalise
from goen.outputs import Outputs

Similarity = Literal["inner_product", "cosine"]


@final
class SHE(Detector):
    r"""Minus the similarity to the mean feature of the predicted class; high for OOD.

    :math:`-\langle x, m_{\hat y} \rangle`, with :math:`m_c` the mean feature of the training images
    of class c that are classified correctly, and :math:`\hat y` the class of the largest logit.
    A class without such an image has a mean of zeros, so what is predicted as it has a similarity
    of 0.

    Args:
        similarity: inner_product, or cosine.
        feature: which of the outputs' features to measure; the last if not given.

    Paper: Zhang et al. 2023, "Out-of-Distribution Detection based on In-Distribution Data Patterns
    Memorization with Modern Hopfield Energy", ICLR 2023. Departs from the paper: the cosine is an
    addition of OpenOOD's.

    The inner product grows with the length of the feature: it fails where OOD features are longer
    than ID features. The cosine does not.

    Example:
        >>> z = torch.tensor([[2.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
        >>> outputs = Outputs(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), {"z": z})
        >>> she = SHE().fit(outputs, torch.tensor([0, 1, 0]))  # the last one is a mistake
        >>> she.score(outputs)
        tensor([-4., -1., -9.], dtype=torch.float64)
    """

    name: ClassVar[str] = "she"
    means_: Tensor

    def __init__(
        self, *, similarity: Similarity = "inner_product", feature: str | None = None
    ) -> None:
        self.similarity = similarity
        self.feature = feature
        check_choice("similarity", similarity, get_args(Similarity))

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        check_finite_for_fit(outputs.logits, "logit")
        correct = correct_classes(outputs.logits, labels)
        means, counts = class_means(self.feature_rows(outputs), correct, self.num_classes_)
        if not bool(counts.any()):
            raise FitError(
                f"None of the {len(outputs)} training images is classified correctly, so there is "
                "no usual feature of any class. Do labels and logits belong together?"
            )
        self.means_ = normalise(means) if self.similarity == "cosine" else means

    def _expected(self) -> Mapping[str, Expected]:
        return {"means": Expected((self.num_classes_, self.features_width))}

    def _score(self, outputs: Outputs) -> Tensor:
        rows = self.feature_rows(outputs)
        wide = normalise(rows) if self.similarity == "cosine" else rows.to(torch.float64)
        own = self.means_.index_select(0, outputs.logits.argmax(dim=1))
        return -(wide * own).sum(dim=1)
