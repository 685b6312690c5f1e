"""How far a metric can be trusted. Two kinds of spread, kept in two kinds of result:

over *images* (`bootstrap`, `paired_auroc_test`: another test set, the same network) and over
*seeds* (`over_seeds`: the same test set, another training run). Neither stands for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from goen.checks import check_number
from goen.errors import UsageError
from goen.functional import ranking
from goen.metrics._inputs import as_array, as_floats
from goen.metrics._ood import curve_metrics

_Placements = tuple[ranking.Floats, ranking.Floats]
_CHUNK = 2**20  # counts held at once by the bootstrap: 8 MB per array


@dataclass(frozen=True)
class Interval:
    """An estimate from the whole sample, and the ends of its confidence interval over images."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class BootstrapIntervals:
    """Intervals over images for the metrics of `OODResult` that DeLong does not cover.

    Attributes:
        num_resamples: bootstrap resamples behind every interval.
        level: confidence level.
        seed: the same seed gives the same intervals.
    """

    aupr_out: Interval
    aupr_in: Interval
    aupr_out_trapezoid: Interval
    aupr_in_trapezoid: Interval
    fpr95_ood_positive: Interval
    fpr95_id_positive: Interval
    detection_accuracy: Interval
    balanced_detection_accuracy: Interval
    num_resamples: int
    level: float
    seed: int


def bootstrap(
    id_scores: npt.ArrayLike,
    ood_scores: npt.ArrayLike,
    *,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> BootstrapIntervals:
    """Confidence intervals over images for every OOD metric but the AUROC, which has DeLong's.

    Stratified: ID and OOD are resampled apart, so the ID:OOD ratio stays what it is. The scores
    are sorted once; a resample only redraws how often each counts. The ends are bias-corrected
    percentiles (Efron 1981), which matters for the two accuracies: they are maxima over
    thresholds, so resampling inflates them, and even corrected their intervals cover about 90 %.

    A bootstrap cannot show what the sample does not hold: where the sides are perfectly
    separated, every interval has zero width. Read that as "no error seen in N and M images",
    not as certainty; for a rate of 0 in N images, 3.7 / N is the usual upper bound at 95 %.

    Args:
        id_scores: scores of in-distribution samples ``(N,)``; higher means more OOD.
        ood_scores: scores of OOD samples ``(M,)``.
        num_resamples: more make the ends steadier, not closer.
        level: confidence level.
        seed: of the resampling.

    Example:
        >>> b = bootstrap([0.1, 0.2, 0.3, 0.6], [0.4, 0.8], num_resamples=200)
        >>> b.fpr95_ood_positive
        Interval(estimate=0.25, low=0.0, high=0.75)
    """
    check_number("level", level, above=0, below=1)
    check_number("num_resamples", num_resamples, whole=True, at_least=1)
    counts = ranking.tally(as_floats(id_scores, "id_scores"), as_floats(ood_scores, "ood_scores"))
    estimates, _ = curve_metrics(counts)
    rng = np.random.default_rng(seed)
    per_chunk = max(1, _CHUNK // (counts.num_id + counts.num_ood))
    drawn: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in estimates}
    for start in range(0, num_resamples, per_chunk):
        num = min(per_chunk, num_resamples - start)
        for name, values in curve_metrics(ranking.resample(counts, num, rng))[0].items():
            drawn[name].append(values)
    intervals = {
        name: _bias_corrected(float(estimate), np.concatenate(drawn[name]), level)
        for name, estimate in estimates.items()
    }
    return BootstrapIntervals(num_resamples=num_resamples, level=level, seed=seed, **intervals)


def _bias_corrected(estimate: float, resampled: npt.NDArray[np.float64], level: float) -> Interval:
    """Percentiles moved by twice the bias: how far from the middle of its resamples it lies."""
    below = np.mean(resampled < estimate) + np.mean(resampled == estimate) / 2
    edge = 0.5 / resampled.size
    bias = special.ndtri(np.clip(below, edge, 1.0 - edge))
    reach = special.ndtri(0.5 + level / 2)
    low, high = np.quantile(resampled, special.ndtr([2 * bias - reach, 2 * bias + reach]))
    return Interval(estimate, float(low), float(high))


@dataclass(frozen=True)
class PairedTest:
    """Two methods on the same images.

    Attributes:
        auroc_a: AUROC of method a.
        auroc_b: AUROC of method b.
        difference: ``auroc_a - auroc_b``.
        low: lower end of the confidence interval of the difference, over images.
        high: upper end.
        p_value: two-sided; small means the two AUROCs differ by more than these images explain.
        num_id: ID samples.
        num_ood: OOD samples.
        level: confidence level of the interval.
    """

    auroc_a: float
    auroc_b: float
    difference: float
    low: float
    high: float
    p_value: float
    num_id: int
    num_ood: int
    level: float


def paired_auroc_test(
    *,
    id_a: npt.ArrayLike,
    ood_a: npt.ArrayLike,
    id_b: npt.ArrayLike,
    ood_b: npt.ArrayLike,
    level: float = 0.95,
) -> PairedTest:
    """Whether two methods' AUROCs differ on the same images (DeLong's paired test).

    Sample i of ``id_a`` and of ``id_b`` must be the same image, likewise for OOD. Scores of the
    two methods need no common scale. A p-value is about these two fitted methods and other
    images, not about other training runs: for that see `over_seeds`.

    Args:
        id_a: scores method a gives the ID samples ``(N,)``; higher means more OOD.
        ood_a: scores method a gives the OOD samples ``(M,)``.
        id_b: scores method b gives the same ID samples ``(N,)``.
        ood_b: scores method b gives the same OOD samples ``(M,)``.
        level: confidence level of the interval of the difference.

    Example:
        >>> good, poor = [0.6, 0.9, 0.7, 0.8], [0.1, 0.9, 0.3, 0.2]
        >>> t = paired_auroc_test(id_a=[0.1, 0.2, 0.3, 0.4], ood_a=good,
        ...                       id_b=[0.1, 0.2, 0.3, 0.4], ood_b=poor)
        >>> t.auroc_a, t.auroc_b, t.difference
        (1.0, 0.53125, 0.46875)
        >>> t.p_value > 0.05  # four images cannot tell
        True
    """
    return paired_mean_auroc_test(
        id_a=id_a, ood_a={"": ood_a}, id_b=id_b, ood_b={"": ood_b}, level=level
    )


def paired_mean_auroc_test(
    *,
    id_a: npt.ArrayLike,
    ood_a: Mapping[str, npt.ArrayLike],
    id_b: npt.ArrayLike,
    ood_b: Mapping[str, npt.ArrayLike],
    level: float = 0.95,
) -> PairedTest:
    """Whether two methods' AUROCs, each the mean over the same OOD sets, differ.

    As ``paired_auroc_test``, over several sets: every set counts the same, whatever its size, and
    the ID samples, which all sets share, are counted once. The sets are those named: the p-value
    carries no information on other kinds of OOD.

    Args:
        id_a: scores method a gives the ID samples ``(N,)``; higher means more OOD.
        ood_a: by set, scores method a gives its samples.
        id_b: scores method b gives the same ID samples.
        ood_b: by set, scores method b gives the same samples.
        level: confidence level of the interval of the difference.

    Raises:
        UsageError: sets, or numbers of samples, that the two do not share; or no set.

    Example:
        >>> known, far = [0.1, 0.2, 0.3, 0.4], {"x": [0.6, 0.9], "y": [0.7, 0.8]}
        >>> near = {"x": [0.1, 0.9], "y": [0.3, 0.2]}
        >>> paired_mean_auroc_test(id_a=known, ood_a=far, id_b=known, ood_b=near).difference
        0.46875
    """
    check_number("level", level, above=0, below=1)
    if not ood_a or set(ood_a) != set(ood_b):
        raise UsageError(
            f"Both methods need scores of the same sets, one or more; got {sorted(ood_a)} and "
            f"{sorted(ood_b)}."
        )
    by_set, by_id, parts = [], [], []
    for name in ood_a:
        a, b = _paired_placements(id_a, ood_a[name], id_b, ood_b[name])
        num_ood, num_id = a[0].size, a[1].size
        by_set.append(np.array([n.sum() for n in (a[0], b[0], a[0] - b[0])]) / (num_id * num_ood))
        by_id.append((a[1] - b[1]) / num_ood)
        parts.append((ranking.variance_of_mean((a[0] - b[0]) / num_id) / len(ood_a) ** 2, num_ood))
    parts.append((ranking.variance_of_mean(np.mean(by_id, axis=0)), num_id))
    num_ood = sum(size for _, size in parts) - num_id
    if min(size for _, size in parts) == 1:
        parts = [(0.0, size) for _, size in parts]  # one image has no spread: be cautious
    auroc_a, auroc_b, difference = np.mean(by_set, axis=0).tolist()
    low, high, p_value = ranking.around(difference, parts, level)
    return PairedTest(
        auroc_a=auroc_a,
        auroc_b=auroc_b,
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        num_id=num_id,
        num_ood=num_ood,
        level=level,
    )


def _paired_placements(
    id_a: npt.ArrayLike, ood_a: npt.ArrayLike, id_b: npt.ArrayLike, ood_b: npt.ArrayLike
) -> tuple[_Placements, _Placements]:
    """The ``placements`` of two methods on the same images."""
    a = as_floats(id_a, "id_a"), as_floats(ood_a, "ood_a")
    b = as_floats(id_b, "id_b"), as_floats(ood_b, "ood_b")
    for side, x, y in (("id", a[0], b[0]), ("ood", a[1], b[1])):
        if x.size != y.size:
            raise UsageError(
                f"A paired test needs the same images for both methods, got {x.size} scores in "
                f"{side}_a and {y.size} in {side}_b."
            )
    return ranking.placements(*a), ranking.placements(*b)


@dataclass(frozen=True)
class OverSeeds:
    """One metric over independent training runs.

    Attributes:
        mean: over seeds.
        sd: standard deviation over seeds (n - 1); NaN for one seed.
        low: lower end of Student's interval for the mean over seeds; NaN for one seed.
        high: upper end.
        minimum: the worst or best seed.
        maximum: the other.
        num_seeds: runs.
        level: confidence level of the interval.
    """

    mean: float
    sd: float
    low: float
    high: float
    minimum: float
    maximum: float
    num_seeds: int
    level: float


def over_seeds(values: Iterable[float], *, level: float = 0.95) -> OverSeeds:
    """Mean, spread and interval of one metric over training runs.

    The interval is mean +- t * sd / sqrt(n) with n - 1 degrees of freedom, not clipped to any
    range: with three seeds t is 4.3, and the interval is honest about it. It holds the spread
    between runs only; each run's own interval over images is another thing and is not mixed in.
    One seed has no spread: sd, low and high are NaN.

    Args:
        values: one number per seed, the same metric on the same images.
        level: confidence level.

    Example:
        >>> s = over_seeds([0.92, 0.94, 0.93])
        >>> round(s.mean, 4), round(s.sd, 4), round(s.low, 4), round(s.high, 4), s.num_seeds
        (0.93, 0.01, 0.9052, 0.9548, 3)
    """
    check_number("level", level, above=0, below=1)
    runs = as_floats(list(values), "values")
    if not np.isfinite(runs).all():
        raise UsageError("values must be finite, got an infinite one. Aggregate it apart.")
    mean, sd, reach = float(np.mean(runs)), float("nan"), float("nan")
    if runs.size > 1:
        sd = float(np.std(runs, ddof=1))
        reach = float(special.stdtrit(runs.size - 1, 0.5 + level / 2)) * sd / runs.size**0.5
    return OverSeeds(
        mean=mean,
        sd=sd,
        low=mean - reach,
        high=mean + reach,
        minimum=float(runs.min()),
        maximum=float(runs.max()),
        num_seeds=runs.size,
        level=level,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number so that any false rejection is as rare (Holm 1979).

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    given = as_array(p_values, "p_values")
    if given.ndim != 1 or not ((given >= 0) & (given <= 1)).all():  # NaN is neither
        raise UsageError(f"p_values must be a list of numbers in [0, 1], got {given.tolist()}.")
    order = np.argsort(given, kind="stable")
    raised = np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1))
    corrected: list[float] = np.minimum(raised, 1.0)[np.argsort(order)].tolist()
    return corrected
