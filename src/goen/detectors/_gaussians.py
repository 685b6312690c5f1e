"""One Gaussian per class with a shared covariance: what GOEN and the Mahalanobis family share."""

from collections.abc import Callable, Iterator

from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector
from goen.errors import FitError
from goen.functional._rows import blocks
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import Whitening
from goen.io.tensors import Tensors
from goen.outputs import Outputs


def labelled_rows(
    outputs: Outputs, labels: Tensor, read: Callable[[Outputs], Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows that a function reads of the outputs, with their labels, in portions."""
    for block in blocks(len(outputs)):
        yield read(outputs[block]), labels[block]


def class_statistics(
    outputs: Outputs, labels: Tensor, read: Callable[[Outputs], Tensor]
) -> ClassStatistics:
    """The statistics of the rows that a function reads of the outputs.

    Example:
        >>> import torch
        >>> outputs = Outputs(torch.zeros(2, 2), {"z": torch.tensor([[3.0], [5.0]])})
        >>> class_statistics(outputs, torch.tensor([0, 0]), lambda some: some.features["z"])
        ClassStatistics(num_classes=2, dim=1: 2 rows, 1 classes seen)
    """
    one = read(outputs[:1])
    statistics = ClassStatistics(outputs.logits.shape[1], one.shape[1], device=one.device)
    for rows, of_rows in labelled_rows(outputs, labels, read):
        statistics.update(rows, of_rows)
    return statistics


class GaussianDetector(Detector):
    """A detector that measures one feature by class Gaussians with a relative ridge.

    Args:
        feature: which of the outputs' features to measure; the last if not given.
        normalise: divide every feature vector by its length first.
        ridge: added to the diagonal of each covariance, as a share of the mean variance within a
            class.
    """

    def __init__(
        self, *, feature: str | None = None, normalise: bool = False, ridge: float = 1e-6
    ) -> None:
        self.feature = feature
        self.normalise = normalise
        self.ridge = ridge
        check_number("ridge", ridge, at_least=0)

    def _rows(self, outputs: Outputs) -> Tensor:
        """The feature vectors as they are measured, ``(N, D)``."""
        rows = self.feature_rows(outputs)
        return normalise(rows) if self.normalise else rows


def mean_variance(statistics: ClassStatistics) -> float:
    """Variance within a class, averaged over the features."""
    trace = float(statistics.within_scatter_.trace())
    if trace == 0:
        raise FitError(
            f"No feature varies within a class ({statistics.num_rows} rows in "
            f"{int((statistics.counts_ > 0).sum())} classes), so there is no covariance to measure "
            "by. Give more than one row per class, or check the features."
        )
    return trace / (statistics.num_rows * statistics.dim)


def whitening_tensors(whitening: Whitening) -> dict[str, Tensor]:
    """All that a ``Whitening`` holds but the number of classes, by name."""
    return {
        "precision_chol": whitening.precision_chol,
        "centre": whitening.centre,
        "whitened_means": whitening.whitened_means,
        "classes": whitening.classes,
        "condition_number": whitening.centre.new_tensor([whitening.condition_number]).cpu(),
    }


def load_whitening(tensors: Tensors, width: int, num_classes: int) -> Whitening:
    """What ``whitening_tensors`` gave, as a ``Whitening`` again.

    Raises:
        ValueError: tensors of another width or number of classes; the message names one.
    """
    tensors.check_names(
        ["precision_chol", "centre", "whitened_means", "classes", "condition_number"]
    )
    classes = tensors.integers("classes", ("classes",), low=0, high=num_classes - 1)
    if len({*classes.tolist()}) < len(classes):
        raise ValueError(f"its tensor {tensors.prefix}classes should name each class once")
    return Whitening(
        precision_chol=tensors.floats("precision_chol", (width, width)),
        centre=tensors.floats("centre", (width,)),
        whitened_means=tensors.floats("whitened_means", (len(classes), width)),
        classes=classes,
        num_classes=num_classes,
        condition_number=float(tensors.floats("condition_number", (1,), low=1.0)),
    )
