"""The held-out ID images of a gate: their scores, the tolerance added to them, the threshold."""

from collections.abc import Sequence
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
            rounding: see ``from_scores``.
        """
        numbers = None if labels is None else labels.numpy()
        return cls.from_scores(
            detector.score_cues(cues).numpy(), rounding, labels=numbers, cues=cues.numpy()
        )

    @classmethod
    def from_scores(
        cls,
        scores: Floats,
        rounding: float = 0.0,
        *,
        labels: NDArray[np.int64] | None = None,
        cues: Floats | None = None,
    ) -> Self:
        """Scores ``(n,)`` of any detector, increased by a tolerance above numerical noise.

        Args:
            scores: of images that were used neither to fit nor to calibrate nor to select anything.
            rounding: the largest difference measured between scores of an image alone and in a
                batch.
            labels: the classifier's labels of the same images.
            cues: of the same images, ``(n, K)``.

        Example:
            >>> HeldOut.from_scores(np.array([1.0, 2.0, 3.0, 4.0])).threshold(0.4) > 3
            True
        """
        return cls(conformal.with_tolerance(scores, rounding), labels, cues)

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
