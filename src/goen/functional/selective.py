"""Selective classification: how often a classifier is wrong on the images that a score accepts.

The images with the lowest scores are accepted. *Coverage* is the share accepted, *risk* the share
of the accepted ones whose class is wrong. Images with equal scores have no order; curves give the
mean over all orders of them.

A bound on the risk of new images is another matter than the risk on these: see ``select``.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CANDIDATES = 20
"""Coverages that ``select`` chooses from: 1/20, 2/20, ..., 1 of the images."""


def errors_by_count(scores: Floats, wrong: NDArray[np.bool_]) -> Floats:
    """``(n + 1,)``: entry k is the number of errors among the k lowest scores.

    Of equal scores each is as likely to be among the k: the errors of a tie are spread evenly.

    Args:
        scores: ``(n,)``, lowest first accepted.
        wrong: ``(n,)``, whether the class of the image is wrong.

    Example:
        >>> errors_by_count(np.array([3.0, 1.0, 3.0]), np.array([True, False, False])).tolist()
        [0.0, 0.0, 0.5, 1.0]
    """
    _, place, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.concatenate([[0], sizes.cumsum()])
    errors = np.concatenate([[0], np.bincount(place, wrong, len(sizes)).cumsum()])
    spread: Floats = np.interp(np.arange(len(scores) + 1), ends, errors)
    return spread


def aurc(errors: Floats) -> float:
    """The area under the risk-coverage curve: the mean risk over the coverages 1/n, 2/n, ..., 1.

    Paper: Geifman, Uziel and El-Yaniv 2019, "Bias-reduced uncertainty estimation for deep neural
    classifiers".

    Example:
        >>> round(aurc(np.array([0.0, 0.0, 0.5, 1.0])), 4)  # (0 + 1/4 + 1/3) / 3
        0.1944
    """
    return float((errors[1:] / np.arange(1, len(errors))).mean())


def least_aurc(num_images: int, num_wrong: int) -> float:
    """The AURC of the best score there is: every error comes after every right answer.

    Example:
        >>> round(least_aurc(4, 2), 4)  # risks 0, 0, 1/3, 1/2
        0.2083
    """
    late = np.arange(1, num_wrong + 1)
    return float((late / (num_images - num_wrong + late)).sum() / num_images)


def accuracy_at(errors: Floats, coverage: float) -> float:
    """The share of right answers among the lowest scores, at least this share of the images."""
    count = max(math.ceil(coverage * (len(errors) - 1) - 1e-9), 1)
    return 1.0 - float(errors[count]) / count


@dataclass(frozen=True)
class Selection:
    """Which images to accept, and how often their class is wrong at most.

    Attributes:
        limit: images that score below it are accepted.
        count: the images among those given that are.
        errors: the wrong ones among them.
        bound: on the risk of new images, with the confidence that was asked for.
    """

    limit: float
    count: int
    errors: int
    bound: float


def select(
    scores: Floats, wrong: NDArray[np.bool_], rate: float, confidence: float
) -> Selection | None:
    r"""As many images as possible such that the risk of new ones is at most ``rate``.

    With probability ``confidence`` over the n images given, :math:`P(wrong \mid s < limit) \leq
    rate` for a new image that is drawn as they were. The limit is one of 20 order statistics,
    whose ranks are chosen before the images are seen. Given the value of such a limit, the images
    below it are independent draws of those that score below it, so that their errors are binomial,
    and Clopper and Pearson's upper bound holds; each of the 20 with an error probability of
    (1 - confidence) / 20, and so all of them together (Bonferroni). No limit passes by luck, and
    the rate may be chosen after the images were seen. Ties are accepted or refused together.

    Args:
        scores: ``(n,)``, of images drawn independently.
        wrong: ``(n,)``.
        rate: the share of wrong classes among accepted images, in (0, 1).
        confidence: in (0, 1).

    Returns:
        The selection with the most images; ``None`` if no bound is low enough.

    Paper: Geifman and El-Yaniv 2017, "Selective classification for deep neural networks", which
    searches the limit by bisection.

    Example:
        >>> scores = np.arange(1000.0)
        >>> found = select(scores, scores >= 900, rate=0.01, confidence=0.95)
        >>> found.limit, found.count, found.errors, round(found.bound, 4)
        (900.0, 900, 0, 0.0066)
    """
    passing = [one for one in selections(scores, wrong, confidence) if one.bound <= rate]
    return max(passing, key=lambda one: one.count, default=None)


def selections(scores: Floats, wrong: NDArray[np.bool_], confidence: float) -> list[Selection]:
    """The candidates of ``select``, the smallest first, with bounds that hold for all of them."""
    from scipy.stats import beta  # slow to import

    order = np.argsort(scores, kind="stable")
    ascending, total = scores[order], len(scores)
    ranks = [total * step // CANDIDATES for step in range(1, CANDIDATES + 1)]
    limits = np.array([*(ascending[rank] for rank in ranks[:-1]), np.inf]) if total else np.zeros(0)
    counts = ascending.searchsorted(limits, side="left")
    errors = np.concatenate([[0], wrong[order].cumsum()])[counts]
    # Of no errors but errors the bound is 1, also where there is no image.
    bounds = np.where(
        errors == counts,
        1.0,
        beta.isf(error_level(confidence), errors + 1, np.maximum(counts - errors, 1)),
    )
    rows = zip(limits.tolist(), counts.tolist(), errors.tolist(), bounds.tolist(), strict=True)
    return [Selection(*row) for row in rows]


def error_level(confidence: float) -> float:
    """The error probability of each candidate's bound, for all of them together."""
    return (1 - confidence) / CANDIDATES


def required_images(rate: float, confidence: float) -> int:
    """How many images without an error it takes for ``select`` to accept them.

    Example:
        >>> required_images(0.02, 0.95), required_images(0.1, 0.9)
        (297, 51)
    """
    return math.ceil(math.log(error_level(confidence)) / math.log1p(-rate))
