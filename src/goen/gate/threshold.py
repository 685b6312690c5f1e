"""The held-out ID images of a gate: their scores, the tolerance added to them, the threshold.

And what they gave image by image, for the report of a fit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from goen.detectors import Detector
from goen.errors import FitError, UsageError
from goen.functional import conformal
from goen.functional.ranking import Floats

# Enough to measure the rounding and whether outputs repeat, few enough to cost nothing.
COMPARED_IMAGES = 8
# Between the scores of two engines.
TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The held-out ID images that set a gate's threshold and do nothing else.

    The arrays are read-only.

    Attributes:
        scores: ``(n,)``, sorted; above the images' own by a tolerance (``with_tolerance``).
        labels: ``(n,)``, the classifier's labels.
        cues: ``(n, K)``, for ``Gate.update``.
    """

    scores: Floats
    labels: NDArray[np.int64] | None = None
    cues: Floats | None = None

    def __post_init__(self) -> None:
        order = np.argsort(self.scores, kind="stable")
        for name in ("scores", "labels", "cues"):
            if getattr(self, name) is not None:
                values = np.asarray(getattr(self, name))[order]  # a copy
                values.flags.writeable = False
                object.__setattr__(self, name, values)

    @classmethod
    def from_cues(
        cls, detector: Detector, cues: Tensor, *, labels: Tensor | None, rounding: float
    ) -> Self:
        """The scores of cues ``(n, K)``, increased by a tolerance above numerical noise.

        Args:
            detector: fitted and calibrated.
            cues: of images that were used neither to fit nor to calibrate nor to select anything.
            labels: the classifier's labels of the same images.
            rounding: the largest difference measured between scores of an image alone and in a
                batch.
        """
        scores = conformal.with_tolerance(detector.score_cues(cues).numpy(), rounding)
        return cls(scores, None if labels is None else labels.numpy(), cues.numpy())

    def __len__(self) -> int:
        return len(self.scores)

    def threshold(self, false_alarm_rate: float) -> float:
        """The score above which an image is flagged; a FitError if there are too few images."""
        rank = conformal.threshold_rank(len(self.scores), false_alarm_rate)
        return float(self.scores[-rank])

    def class_thresholds(self, false_alarm_rate: float, classes: Sequence[str]) -> Floats:
        """``(C,)``: the threshold for images of each predicted class.

        Raises:
            FitError: a class has too few held-out images for the rate.
        """
        if self.labels is None:
            raise FitError(
                "This gate was saved without the predicted classes of its held-out images, so it "
                "has no threshold per class. Gates that goen fit makes have them."
            )
        counts = np.bincount(self.labels, minlength=len(classes))
        needed = conformal.required_held_out(false_alarm_rate)
        few = [f"{name} ({n})" for name, n in zip(classes, counts, strict=True) if n < needed]
        if few:
            raise FitError(
                f"A false-alarm rate of {false_alarm_rate:g} within every class needs "
                f"{needed} held-out images of each to set the threshold. Too few: "
                f"{', '.join(few[:10])}{', ...' if len(few) > 10 else ''}. Hold out more, or allow "
                "a higher rate."
            )
        of_class = (self.scores[self.labels == label] for label in range(len(classes)))
        return np.array([conformal.threshold(scores, false_alarm_rate) for scores in of_class])

    def require_cues(self) -> Floats:
        """The cues; an error where the gate was saved without them."""
        if self.cues is None:
            raise UsageError("This gate was saved without its held-out cues: give held_out again.")
        return self.cues


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
        ood_scores: of the OOD images of the fit, ``(M,)`` of each kind.
    """

    scores: Floats
    cues: Floats
    predicted: NDArray[np.int64]
    truth: NDArray[np.int64] | None
    sets_threshold: NDArray[np.bool_]
    ood_scores: Mapping[str, Floats]

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


def engine_tolerance(scores: Floats) -> float:
    """By how much a score may differ in another engine, given the held-out scores ``(n,)``.

    A thousandth of their interquartile range, at least 1e-5; of scores above 1 relative to them.
    Another engine adds float32 numbers up in another order. Scores that differ by so little are a
    handful of held-out images apart, and the decisions are compared one by one.
    """
    return max(TOLERANCE, 1e-3 * conformal.spread(scores))


def tie_tolerance(scores: Floats, difference: float) -> float:
    """How close to a held-out score another score counts as equal to it.

    Args:
        scores: held-out, ``(n,)``. Ties are with them: the score of noise may be a million times
            as high, and its rounding too. So may the hundredth part of them that is highest, which
            is left out.
        difference: the largest between the engines, of scores above 1 relative to them.
    """
    largest = float(np.quantile(np.abs(scores), 0.99, method="lower"))
    return 1.5 * max(1.0, largest) * difference + 1e-12
