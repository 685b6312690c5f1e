"""How well a score finds wrong answers: `selective_metrics`, `risk_coverage_curve`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from goen.checks import check_number
from goen.errors import UsageError
from goen.functional import ranking, selective
from goen.metrics._inputs import Floats, as_booleans, as_floats

COVERAGES = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class SelectiveResult:
    """Selective classification with one score: the lowest scores are accepted first.

    Attributes:
        error_auroc: P(score of a right answer < score of a wrong one) + P(equal) / 2.
        error_auroc_low: lower end of its confidence interval (DeLong, see `ood_metrics`).
        error_auroc_high: upper end.
        aurc: area under the risk-coverage curve: the mean share of wrong answers among the k
            lowest scores, over k = 1 ... n. It depends on the accuracy.
        e_aurc: its excess over the AURC of the best order, in which all errors come last.
        accuracy_at_50: share of right answers among the half of the images with the lowest scores.
        accuracy_at_80: among 80 % of them.
        accuracy_at_90: among 90 % of them.
        accuracy_at_95: among 95 % of them.
        num_images: right and wrong together.
        num_wrong: wrong answers.
        level: confidence level of the interval.
    """

    error_auroc: float
    error_auroc_low: float
    error_auroc_high: float
    aurc: float
    e_aurc: float
    accuracy_at_50: float
    accuracy_at_80: float
    accuracy_at_90: float
    accuracy_at_95: float
    num_images: int
    num_wrong: int
    level: float


def selective_metrics(
    scores: npt.ArrayLike, is_wrong: npt.ArrayLike, *, level: float = 0.95
) -> SelectiveResult:
    """AURC, its excess, accuracy at coverage and the AUROC of errors, of one score on ID images.

    The score may be an OOD score or an uncertainty, such as 1 - confidence. Equal scores have no
    order: every value is the mean over all orders of them.

    Args:
        scores: of ID images ``(N,)``; higher is refused first.
        is_wrong: True (or 1) where the predicted class is wrong ``(N,)``.
        level: confidence level of the interval of the AUROC.

    Raises:
        UsageError: NaN, no images, other lengths, or answers that are all right or all wrong.

    Example:
        >>> m = selective_metrics([0.1, 0.2, 0.3, 0.4], [False, True, False, False])
        >>> round(m.aurc, 4), round(m.e_aurc, 4)  # (0 + 1/2 + 1/3 + 1/4) / 4, less 1/16
        (0.2708, 0.2083)
        >>> m.accuracy_at_50, round(m.error_auroc, 4)
        (0.5, 0.3333)
    """
    check_number("level", level, above=0, below=1)
    values, wrong = _as_scored(scores, is_wrong)
    num_wrong = int(wrong.sum())
    if not 0 < num_wrong < wrong.size:
        which = "wrong" if num_wrong else "right"
        raise UsageError(
            f"All {wrong.size} answers are {which}: no score can tell right from wrong ones. Give "
            "images of both kinds."
        )
    counts = ranking.tally(values[~wrong], values[wrong])
    area = float(ranking.auroc(counts))
    low, high = ranking.auroc_interval(counts, area, level)
    errors = selective.errors_by_count(values, wrong)
    aurc = selective.aurc(errors)
    at = {f"accuracy_at_{c:.0%}".rstrip("%"): selective.accuracy_at(errors, c) for c in COVERAGES}
    return SelectiveResult(
        error_auroc=area,
        error_auroc_low=low,
        error_auroc_high=high,
        aurc=aurc,
        e_aurc=aurc - selective.least_aurc(wrong.size, num_wrong),
        num_images=wrong.size,
        num_wrong=num_wrong,
        level=level,
        **at,
    )


def risk_coverage_curve(scores: npt.ArrayLike, is_wrong: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Coverages 1/N, 2/N, ..., 1 and the share of wrong answers among the images accepted at each.

    Args:
        scores: of ID images ``(N,)``; the lowest are accepted first.
        is_wrong: True (or 1) where the predicted class is wrong ``(N,)``.

    Example:
        >>> coverage, risk = risk_coverage_curve([0.1, 0.4, 0.2, 0.3], [False, True, True, False])
        >>> coverage.tolist(), risk.round(3).tolist()
        ([0.25, 0.5, 0.75, 1.0], [0.0, 0.5, 0.333, 0.5])
    """
    errors = selective.errors_by_count(*_as_scored(scores, is_wrong))
    counts = np.arange(1, len(errors))
    return counts / len(counts), errors[1:] / counts


def _as_scored(
    scores: npt.ArrayLike, is_wrong: npt.ArrayLike
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    values = as_floats(scores, "scores")
    return values, as_booleans(is_wrong, "is_wrong", values.size).astype(np.bool_)
