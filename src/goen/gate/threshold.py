"""The held-out ID images of a gate: their scores, the tolerance added to them, the threshold.

And what they gave image by image, for the report of a fit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from goen.detectors import Detector
from goen.errors import FitError, UsageError, first_of, warn
from goen.functional import conformal
from goen.functional.near_copies import NearCopies
from goen.functional.ranking import Floats
from goen.outputs import Outputs

# Enough to measure the rounding and whether outputs repeat, few enough to cost nothing.
COMPARED_IMAGES = 8
# Between the scores of two engines.
TOLERANCE = 1e-5


class Answers(NamedTuple):
    """What a classifier answers to n images, as ``HeldOut`` has it; ``None`` what is not known."""

    labels: NDArray[np.int64] | None = None
    confidence: Floats | None = None
    wrong: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, detector: Detector, outputs: Outputs, truth: Tensor | None) -> Self:
        """The answers to these outputs, as the gate of the detector gives them.

        Args:
            detector: fitted and calibrated.
            outputs: of the network.
            truth: the true labels, if they are known.
        """
        logits = detector.calibrated(outputs).logits.double()
        confidence, labels = torch.softmax(logits, dim=1).max(dim=1)
        wrong = None if truth is None else (labels != truth).numpy()
        return cls(labels.numpy(), confidence.numpy(), wrong)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The held-out ID images that set a gate's threshold and do nothing else.

    The arrays are read-only.

    Attributes:
        scores: ``(n,)``, sorted; above the images' own by a tolerance (``with_tolerance``).
        labels: ``(n,)``, the classifier's labels.
        cues: ``(n, K)``, for ``Gate.update``.
        groups: ``(n,)``, the number of each image's group (scene, patient, video), from 0; ``None``
            if each image was drawn for itself.
        confidence: ``(n,)``, of the classifier in its label, for an error rate.
        wrong: ``(n,)``, whether that label is wrong, if the true ones are known.
        properties: ``(n, P)``, see ``goen.functional.image_properties``; of images alone, and not
            of gates saved before there were any. A monitor compares new images with them.
    """

    scores: Floats
    labels: NDArray[np.int64] | None = None
    cues: Floats | None = None
    groups: NDArray[np.int64] | None = None
    confidence: Floats | None = None
    wrong: NDArray[np.bool_] | None = None
    properties: Floats | None = None

    def __post_init__(self) -> None:
        order = np.argsort(self.scores, kind="stable")
        for field in fields(self):
            if getattr(self, field.name) is not None:
                values = np.asarray(getattr(self, field.name))[order]  # a copy
                values.flags.writeable = False
                object.__setattr__(self, field.name, values)

    @classmethod
    def from_cues(
        cls,
        detector: Detector,
        cues: Tensor,
        *,
        answers: Answers | None = None,
        rounding: float,
        properties: Tensor | None = None,
        groups: NDArray[np.int64] | None = None,
    ) -> Self:
        """The scores of cues ``(n, K)``, increased by a tolerance above numerical noise.

        Args:
            detector: fitted and calibrated.
            cues: of images that were used neither to fit nor to calibrate nor to select anything.
            answers: of the classifier to the same images, if they are known.
            rounding: the largest difference measured between scores of an image alone and in a
                batch.
            properties: of the same images, if they are images.
            groups: of the same images, any numbers, if they come in groups.
        """
        scores = conformal.with_tolerance(detector.score_cues(cues).numpy(), rounding)
        numbers = None if groups is None else np.unique(groups, return_inverse=True)[1]
        labels, confidence, wrong = answers or Answers()
        measured = None if properties is None else properties.numpy()
        return cls(scores, labels, cues.numpy(), numbers, confidence, wrong, measured)

    @property
    def answers(self) -> Answers:
        """Of the classifier to these images."""
        return Answers(self.labels, self.confidence, self.wrong)

    def __len__(self) -> int:
        return len(self.scores)

    def threshold(self, false_alarm_rate: float) -> float:
        """The score above which an image is flagged; a FitError if there are too few images."""
        if self.p_value_steps is not None:
            at_most = conformal.grouped_threshold(self.p_value_steps, false_alarm_rate)
            return float(self.scores[at_most - 1])
        rank = conformal.threshold_rank(len(self.scores), false_alarm_rate)
        return float(self.scores[-rank])

    @property
    def independent(self) -> int:
        """What counts once in a p-value: the groups, or the images where there are none."""
        return len(self) if self.groups is None else int(self.groups.max()) + 1

    @cached_property
    def p_value_steps(self) -> Floats | None:
        """``(n + 1,)``: the p-value of a score that j held-out ones are below; of groups alone."""
        return None if self.groups is None else conformal.p_value_steps(self.groups)

    def class_thresholds(self, false_alarm_rate: float, classes: Sequence[str]) -> Floats:
        """``(C,)``: the threshold for images of each predicted class.

        Raises:
            FitError: a class has too few held-out images for the rate.
        """
        if self.groups is not None:
            raise FitError(
                "The held-out images of this gate come in groups, and a group may have images of "
                "several predicted classes: it has one threshold, and none per class."
            )
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
                f"{first_of(few, 10)}. Hold out more, or allow a higher rate."
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
        near_copies: held-out images that lie near a training image or near each other; ``None`` if
            there are no training images.
    """

    scores: Floats
    cues: Floats
    predicted: NDArray[np.int64]
    truth: NDArray[np.int64] | None
    sets_threshold: NDArray[np.bool_]
    ood_scores: Mapping[str, Floats]
    near_copies: NearCopies | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def accuracy(self) -> float | None:
        """Of the classifier on these images, if all have a label."""
        return None if self.truth is None else float((self.predicted == self.truth).mean())

    def most_suspicious(self, count: int) -> NDArray[np.int64]:
        """The numbers of the ``count`` images with the highest scores, highest first."""
        return np.argsort(-self.scores, kind="stable")[:count]


def warn_of_ties(held_out: HeldOut, scores: Floats, false_alarm_rate: float) -> None:
    """Warn if so many held-out scores tie that less than half of the rate can be flagged.

    A score equal to the threshold is not flagged, so where many held-out images have the highest
    score, or one that rounding does not distinguish from it, new ID images are hardly ever flagged;
    and where that is the highest score there is, nothing is.

    Args:
        held_out: sets the threshold.
        scores: ``(n,)``, the same images' own, without the tolerance.
        false_alarm_rate: of the gate.
    """
    threshold = held_out.threshold(false_alarm_rate)
    above, count, size = int((scores > threshold).sum()), len(held_out), held_out.independent
    steps = held_out.p_value_steps
    reached = (1 + above) / (count + 1) if steps is None else steps[count - above]
    if reached < conformal.threshold_rank(size, false_alarm_rate) / (size + 1) / 2:
        ties = int((held_out.scores >= threshold).sum()) - above
        warn(
            f"{ties:,} of the {count:,} held-out images that set the threshold have the score "
            f"{threshold:.4g}, which is the threshold, or one that rounding does not distinguish "
            f"from it, and {above:,} score above it: the gate flags {above / count:.2g} of ID "
            f"images, not {false_alarm_rate:g}, and may flag no OOD image either. Does the "
            "detector read a feature that hardly varies, such as a layer of one number, or are "
            "many held-out images the same? Choose other layers, another detector or other "
            "held-out images."
        )


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


def near_chance(accuracy: float, num_classes: int, images: str) -> str:
    """The warning of such an accuracy on these images."""
    return (
        f"The classifier is right on {accuracy:.1%} of the {images} images, no better than "
        f"chance ({1 / num_classes:.1%}). Is the preprocessing missing, do the labels "
        "count the classes in another order than the logits, or are these other weights, or "
        "none (--weights)?"
    )
