"""How well scores separate OOD from ID: `ood_metrics`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from goen.checks import check_number
from goen.functional import ranking
from goen.metrics._inputs import Floats, as_floats


@dataclass(frozen=True)
class OODResult:
    """Detection metrics of one score on one ID and one OOD sample. Rates and areas lie in [0, 1].

    Attributes:
        auroc: P(ID score < OOD score) + P(equal) / 2.
        auroc_low: lower end of its confidence interval (DeLong, see `ood_metrics`).
        auroc_high: upper end.
        aupr_out: average precision with OOD as the positive class.
        aupr_in: average precision with ID as the positive class.
        aupr_out_trapezoid: trapezoid under the same curve as ``aupr_out``: what OpenOOD and
            pytorch-ood call AUPR.
        aupr_in_trapezoid: trapezoid under the same curve as ``aupr_in``.
        fpr95_ood_positive: share of ID flagged when at least 95 % of OOD is flagged
            (the GOEN paper, OpenOOD 1.5).
        fpr95_id_positive: share of OOD accepted when at least 95 % of ID is accepted
            (the ODIN paper, OpenOOD 1).
        detection_accuracy: share of all samples decided rightly at ``threshold``; depends on
            the ID:OOD ratio.
        balanced_detection_accuracy: (TPR + TNR) / 2 at ``threshold``; does not.
        threshold: flag OOD when score >= threshold. The Youden point, where TPR - FPR is
            largest; of equals the highest. Infinite when nothing beats flagging nothing.
        num_id: ID samples.
        num_ood: OOD samples.
        level: confidence level of the AUROC interval.
    """

    auroc: float
    auroc_low: float
    auroc_high: float
    aupr_out: float
    aupr_in: float
    aupr_out_trapezoid: float
    aupr_in_trapezoid: float
    fpr95_ood_positive: float
    fpr95_id_positive: float
    detection_accuracy: float
    balanced_detection_accuracy: float
    threshold: float
    num_id: int
    num_ood: int
    level: float


def ood_metrics(
    id_scores: npt.ArrayLike, ood_scores: npt.ArrayLike, *, level: float = 0.95
) -> OODResult:
    """Every detection metric of one score, under names that cannot be confused.

    Only the order of the scores counts: no sigmoid, no clipping, infinities allowed. Samples with
    equal scores are decided together, and count half in the AUROC. The AUROC interval is DeLong's
    on the logit scale, widened where the sample holds too few errors to estimate its own spread
    (perfect separation gives [0.025 ** (1 / min(N, M)), 1] at 95 %, never [1, 1]). For intervals
    of the other metrics see `bootstrap`. Formulas and conventions: docs/metrics.md.

    Args:
        id_scores: scores of in-distribution samples ``(N,)``; higher means more OOD.
        ood_scores: scores of OOD samples ``(M,)``.
        level: confidence level of the AUROC interval.

    Raises:
        UsageError: a side is empty, not one-dimensional, or holds NaN.

    Example:
        >>> m = ood_metrics([0.1, 0.2, 0.3, 0.6], [0.4, 0.8])
        >>> m.auroc, m.fpr95_ood_positive, m.fpr95_id_positive, m.threshold
        (0.875, 0.25, 0.5, 0.4)
        >>> ood_metrics([1.0], [0.0]).auroc
        0.0
    """
    check_number("level", level, above=0, below=1)
    counts = ranking.tally(as_floats(id_scores, "id_scores"), as_floats(ood_scores, "ood_scores"))
    area = float(ranking.auroc(counts))
    low, high = ranking.auroc_interval(counts, area, level)
    curve, best = curve_metrics(counts)
    return OODResult(
        auroc=area,
        auroc_low=low,
        auroc_high=high,
        threshold=float("inf") if best[0] == 0 else float(counts.scores[-best[0]]),
        num_id=counts.num_id,
        num_ood=counts.num_ood,
        level=level,
        **{name: float(value) for name, value in curve.items()},
    )


def curve_metrics(counts: ranking.Tally) -> tuple[dict[str, Floats], npt.NDArray[np.intp]]:
    """The metrics `bootstrap` also covers ``(...)``, and the Youden index ``(..., 1)``.

    The index counts, from above, the distinct scores that are flagged; 0 flags nothing.
    """
    caught, alarms = counts.ood_first()
    accepted, missed = counts.id_first()
    aupr_out, aupr_out_trapezoid = ranking.precision_recall_areas(caught, alarms)
    aupr_in, aupr_in_trapezoid = ranking.precision_recall_areas(accepted, missed)
    # "Flag nothing" is the threshold +inf, which does not exist when a score is +inf itself.
    best = ranking.youden_index(caught, alarms, may_flag_none=counts.scores[-1] < np.inf)
    right_ood = np.take_along_axis(caught, best, axis=-1)[..., 0]
    right_id = counts.num_id - np.take_along_axis(alarms, best, axis=-1)[..., 0]
    curve = {
        "aupr_out": aupr_out,
        "aupr_in": aupr_in,
        "aupr_out_trapezoid": aupr_out_trapezoid,
        "aupr_in_trapezoid": aupr_in_trapezoid,
        "fpr95_ood_positive": ranking.fpr_at_tpr(caught, alarms, 0.95),
        "fpr95_id_positive": ranking.fpr_at_tpr(accepted, missed, 0.95),
        "detection_accuracy": (right_ood + right_id) / (counts.num_id + counts.num_ood),
        "balanced_detection_accuracy": (right_ood / counts.num_ood + right_id / counts.num_id) / 2,
    }
    return curve, best
