"""Which images a gate accepts so that the classes of the accepted ones are rarely wrong.

A gate flags OOD images by its score; its classifier is wrong on some ID images that pass. With an
error rate the gate also decides which images to *accept*: those that it does not flag, and whose
confidence is high enough (or whose score is low enough) that at most this share of the accepted ID
images is misclassified, with a stated probability. It needs the labels of the held-out images.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from goen.checks import check_choice, check_number
from goen.detectors import Detector
from goen.errors import FitError, UsageError
from goen.functional.ranking import Floats
from goen.functional.selective import Selection, required_images, select, selections
from goen.gate.threshold import HeldOut

AcceptBy = Literal["confidence", "score"]
ACCEPT_BY: tuple[AcceptBy, ...] = ("confidence", "score")


@dataclass(frozen=True)
class ErrorRate:
    """How often the class of an accepted ID image may be wrong.

    Attributes:
        rate: the largest share of wrong classes among accepted ID images.
        confidence: the probability, over the held-out images, that the gate keeps it.
        by: what orders the images: the classifier's confidence, or the score of the gate.
    """

    rate: float
    confidence: float = 0.95
    by: AcceptBy = "confidence"

    def __post_init__(self) -> None:
        check_number("An error rate", self.rate, above=0, below=1)
        check_number("confidence", self.confidence, above=0, below=1)
        check_choice("order of acceptance", self.by, ACCEPT_BY)
        object.__setattr__(self, "rate", float(self.rate))
        object.__setattr__(self, "confidence", float(self.confidence))


@dataclass(frozen=True)
class Acceptance:
    """Which images are accepted for an error rate, and what the held-out images show of it.

    Attributes:
        below_score: accepted images score below this, which is at most the threshold.
        above_confidence: and have a confidence above this.
        selection: the held-out images that are accepted, the errors among them and the bound.
        num_held_out: the held-out images, flagged ones included.
    """

    below_score: float
    above_confidence: float
    selection: Selection
    num_held_out: int

    @property
    def coverage(self) -> float:
        """The share of the held-out images that is accepted."""
        return self.selection.count / self.num_held_out

    def accepts(self, score: Floats, confidence: Floats) -> NDArray[np.bool_]:
        """Which images are accepted, given their scores and confidences ``(N,)``."""
        return (score < self.below_score) & (confidence > self.above_confidence)


def find_acceptance(
    wanted: ErrorRate, held_out: HeldOut, detector: Detector, false_alarm_rate: float
) -> Acceptance:
    """The images to accept, as many as the bound allows.

    The held-out images that score below the one that sets the threshold are, given its score,
    independent draws of ID images that score below it; ``select`` chooses among them.

    Raises:
        FitError: no bound is as low as the rate; the message has the lowest.
        UsageError: the held-out images have no labels, or come in groups.
    """
    confidences, wrong = _answers(held_out)
    # Without the tolerance that guards a threshold against flagging ties: it would accept more.
    scores = detector.score_cues(torch.tensor(held_out.require_cues())).numpy()
    threshold = held_out.threshold(false_alarm_rate)
    limit = float(scores[held_out.scores >= threshold].min())
    below = scores < limit
    order = scores if wanted.by == "score" else -confidences
    given = (order[below], wrong[below])
    found = select(*given, wanted.rate, wanted.confidence)
    if found is None:
        raise FitError(_too_high(wanted, selections(*given, wanted.confidence), len(held_out)))
    make = partial(Acceptance, selection=found, num_held_out=len(held_out))
    if wanted.by == "score":
        return make(below_score=min(found.limit, limit), above_confidence=-np.inf)
    return make(below_score=limit, above_confidence=-found.limit)


def _answers(held_out: HeldOut) -> tuple[Floats, NDArray[np.bool_]]:
    """The confidences of the held-out images, and which of their classes are wrong."""
    if held_out.groups is not None:
        raise UsageError(
            "The held-out images of this gate come in groups, and the bound on the error rate is "
            "for images that were drawn independently: fit a gate without groups."
        )
    if held_out.confidence is None or held_out.wrong is None:
        raise UsageError(
            "An error rate needs the labels of the held-out images, and this gate was made "
            "without them. Fit it with labelled held-out images, or give it new ones: "
            "gate.update(held_out=(images, labels))."
        )
    return held_out.confidence, held_out.wrong


def _too_high(wanted: ErrorRate, candidates: list[Selection], num_held_out: int) -> str:
    best = min(candidates, key=lambda one: one.bound, default=Selection(np.inf, 0, 0, 1.0))
    return (
        f"No images can be accepted with an error rate of {wanted.rate:g} and a confidence of "
        f"{wanted.confidence:g}: the lowest bound is {best.bound:.2g}, with {best.errors} errors "
        f"among {best.count:,} of {num_held_out:,} held-out images. Without any error it takes "
        f"{required_images(wanted.rate, wanted.confidence):,} of them. Allow a higher rate or a "
        "lower confidence, or hold out more labelled images."
    )
