"""What the held-out images of a fit gave, image by image: for its report."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goen.functional.ranking import Floats


@dataclass(frozen=True, eq=False)
class FitDiagnostics:
    """The N held-out images of a fit, in their order.

    A gate has it when ``Gate.fit`` returns it; it is not saved.

    Attributes:
        scores: ``(N,)``, the images' own, without the tolerance added to ``HeldOut.scores``.
        cues: ``(N, K)``.
        predicted: ``(N,)``, the classifier's labels.
        truth: ``(N,)``, the true labels, if all images have one.
        sets_threshold: ``(N,)``, which images set the threshold; the others calibrate the detector.
    """

    scores: Floats
    cues: Floats
    predicted: NDArray[np.int64]
    truth: NDArray[np.int64] | None
    sets_threshold: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def accuracy(self) -> float | None:
        """Of the classifier on these images, if all have a label."""
        return None if self.truth is None else float((self.predicted == self.truth).mean())

    def most_suspicious(self, count: int) -> NDArray[np.int64]:
        """The numbers of the ``count`` images with the highest scores, highest first."""
        return np.argsort(-self.scores, kind="stable")[:count]


def is_clearly_above(share: float, count: int, other: float, other_count: int) -> bool:
    """Whether a share of ``count`` images is above another: by five sigma of their difference.

    Example:
        >>> is_clearly_above(0.995, 600, 0.68, 4000), is_clearly_above(0.70, 600, 0.68, 4000)
        (True, False)
    """
    pooled = (share * count + other * other_count) / (count + other_count)
    return share - other > 5 * math.sqrt(pooled * (1 - pooled) * (1 / count + 1 / other_count))


def is_near_chance(accuracy: float, count: int, num_classes: int) -> bool:
    """Whether an accuracy on ``count`` images is not clearly better than chance: three sigma.

    Of one class every answer is right.

    Example:
        >>> is_near_chance(0.12, 1000, 10), is_near_chance(0.15, 1000, 10)
        (True, False)
    """
    chance = 1 / num_classes
    return num_classes > 1 and accuracy <= chance + 3 * math.sqrt(chance * (1 - chance) / count)
