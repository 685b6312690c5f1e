"""From scores to decisions with a guarantee: conformal p-values, thresholds, false discoveries.

A score is higher for more OOD. Held-out scores come from in-distribution (ID) inputs that trained,
fitted and calibrated nothing. With n of them and a new ID input exchangeable with them,

    p(s) = (1 + #{held-out >= s}) / (n + 1)        P(p <= alpha | ID) <= alpha, for every n

and `is_ood` means p <= alpha. `threshold` gives the same decision as a comparison: with k the
largest integer for which k / (n + 1) <= alpha, flag what is strictly above the k-th largest
held-out score. It is always the correctly rounded k / (n + 1) that is compared with alpha, never k
with alpha · (n + 1): 0.29 · 100 is 28.999999999999996 in binary, but 29 / 100 is exactly the number
that 0.29 denotes. So `score > threshold` and `p <= alpha` agree always, ties included.

Where images come in groups that depend on each other (the frames of a video, the images of a
patient), the groups are exchangeable, and each of G groups counts once, by the share of its scores:

    p(s) = (1 + sum over groups of #{its scores >= s} / #{its scores}) / (G + 1)

P(p <= alpha) <= alpha for an image of a new group (`grouped_p_values`). The sum is one of whole
numbers over a common denominator, so that these p-values, too, are correctly rounded.

Arrays or CPU tensors in, NumPy float64 out. Compare scores with a threshold in float64: rounding a
threshold to float32 can move it past a score.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from goen.errors import FitError, UsageError, first_of

Numbers: TypeAlias = ArrayLike | torch.Tensor
# A smaller rate needs more held-out images than any set has, and counting them takes for ever.
_LEAST_RATE = 1e-12


def p_values(scores: Numbers, held_out_scores: Numbers) -> NDArray[np.float64]:
    """Conformal p-value of each score: small means more OOD than nearly all held-out ID inputs.

    p = (1 + #{held-out >= s}) / (n + 1), in [1 / (n + 1), 1]. A held-out score equal to s counts
    against flagging, so ties make the decision more cautious, never less.

    Args:
        scores: any shape, a single number included; higher is more OOD.
        held_out_scores: (n,), n >= 1. Already sorted ones are not sorted again.

    Raises:
        UsageError: NaN among the numbers, or no held-out scores.

    Paper: Vovk et al. 2005; Bates et al. 2023 for outliers.

    Example:
        >>> p_values([0.5, 3.0, 9.0], held_out_scores=[1.0, 2.0, 3.0]).tolist()
        [1.0, 0.5, 0.25]
    """
    return p_values_of_sorted(_numbers("scores", scores), _sorted_held_out(held_out_scores))


def p_values_of_sorted(
    scores: NDArray[np.float64], held_out: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``p_values`` against held-out scores that are known to be sorted and without NaN.

    Nothing is checked: it is for what was checked when it was fitted or loaded, and is used for
    every batch. A score of NaN gets the least p-value there is.

    Example:
        >>> p_values_of_sorted(np.array([3.0, np.nan]), np.array([1.0, 2.0, 3.0])).tolist()
        [0.5, 0.25]
    """
    at_least = held_out.size - held_out.searchsorted(scores, side="left")
    return np.asarray((1 + at_least) / (held_out.size + 1), dtype=np.float64)


def p_value_steps(groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """The n + 1 p-values that a score may have, highest first, given the groups of n images.

    The p-value of a score that j of the held-out scores are below is the j-th, from 0. Each is
    rounded once. With groups of one image they are (n + 1 - j) / (n + 1).

    Args:
        groups: (n,), the group of each held-out score, in the order of the scores.

    Example:
        >>> p_value_steps(np.array([0, 0, 1])).tolist()  # one group of two, one of one
        [1.0, 0.8333333333333334, 0.6666666666666666, 0.3333333333333333]
    """
    names, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    whole = math.lcm(*sizes.tolist())
    shares = [whole // size for size in sizes.tolist()]
    above, denominator = whole, whole * (len(names) + 1)
    steps = [above / denominator]
    for group in number[::-1].tolist():
        above += shares[group]
        steps.append(above / denominator)
    return np.array(steps[::-1], dtype=np.float64)


def grouped_p_values(
    scores: Numbers, held_out_scores: Numbers, groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Conformal p-value of each score among held-out scores that come in groups.

    p = (1 + the sum over groups of the share of its scores that are >= s) / (G + 1). An image of a
    new group gets p <= alpha with probability at most alpha if the groups are exchangeable, however
    much the images of one group depend on each other.

    Args:
        scores: any shape.
        held_out_scores: (n,).
        groups: (n,), the group of each held-out score.

    Paper: Lee, Barber and Willett 2023, "Distribution-free inference with hierarchical data".

    Example:
        >>> grouped_p_values([2.5, 9.0], [1.0, 2.0, 3.0, 4.0], np.array([0, 0, 0, 1])).tolist()
        [0.7777777777777778, 0.3333333333333333]
    """
    held_out = _numbers("held_out_scores", held_out_scores)
    order = np.argsort(held_out, kind="stable")
    below = held_out[order].searchsorted(_numbers("scores", scores), side="left")
    return p_value_steps(np.asarray(groups)[order])[below]


def grouped_threshold(steps: NDArray[np.float64], false_alarm_rate: float) -> int:
    """How many held-out scores are at most the threshold, given ``p_value_steps``.

    The threshold is the j-th lowest held-out score, from 1: the least j for which a score above it
    has p <= rate.

    Raises:
        FitError: there are too few groups for the rate.

    Example:
        >>> grouped_threshold(p_value_steps(np.array([0, 0, 1])), 0.7)
        2
    """
    rate = _rate("false_alarm_rate", false_alarm_rate)
    at_most = int((steps > rate).sum())
    if at_most == len(steps):
        there = round(1 / steps[-1]) - 1
        raise FitError(
            f"A false-alarm rate of {rate:g} needs at least {required_held_out(rate)} groups of "
            f"held-out images, got {there}. Hold out more groups, or allow a higher rate."
        )
    return at_most


def threshold(held_out_scores: Numbers, false_alarm_rate: float) -> float:
    """The score above which an input is flagged: P(score > threshold | ID) <= false_alarm_rate.

    The k-th largest of the n held-out scores, k the largest integer with k / (n + 1) <= rate. The
    probability is over the held-out set and the input together; see `false_alarm_interval` for what
    one held-out set may give. ``score > threshold`` equals ``p_values(score) <= rate`` always.

    Args:
        held_out_scores: (n,).
        false_alarm_rate: alpha, in (0, 1).

    Raises:
        FitError: n is too small for the rate; the message gives the number needed.
        UsageError: NaN among the scores, or a rate outside (0, 1).

    Example:
        >>> threshold([1.0, 2.0, 3.0, 4.0], false_alarm_rate=0.4)
        3.0
    """
    held_out = _sorted_held_out(held_out_scores)
    rank = threshold_rank(held_out.size, false_alarm_rate)
    return float(held_out[held_out.size - rank])


def threshold_rank(num_held_out: int, false_alarm_rate: float) -> int:
    """k, the largest integer with k / (n + 1) <= alpha: the threshold is the k-th largest score.

    The numbers are compared as they are rounded; 1 <= k <= n.

    Raises:
        FitError: n is too small for the rate; the message gives the number needed.

    Example:
        >>> threshold_rank(1000, 0.05)
        50
    """
    false_alarm_rate = _rate("false_alarm_rate", false_alarm_rate)
    size = num_held_out + 1
    rank = math.floor(false_alarm_rate * size)
    while (rank + 1) / size <= false_alarm_rate:
        rank += 1
    while rank / size > false_alarm_rate:
        rank -= 1
    if rank < 1:
        raise FitError(
            f"A false-alarm rate of {false_alarm_rate:g} needs at least "
            f"{required_held_out(false_alarm_rate)} held-out scores, got {num_held_out}. "
            "Hold out more in-distribution inputs, or allow a higher rate."
        )
    return rank


def required_held_out(false_alarm_rate: float, rank: int = 1) -> int:
    """The least number of held-out scores with which a rate can be guaranteed: ceil(k/alpha) - 1.

    Args:
        false_alarm_rate: alpha, in (0, 1).
        rank: k, if the threshold is to be the k-th largest score; see ``threshold_rank``.

    Example:
        >>> required_held_out(0.05), required_held_out(0.001), required_held_out(0.05, rank=2)
        (19, 999, 39)
    """
    false_alarm_rate = _rate("A false-alarm rate", false_alarm_rate)
    needed = max(math.ceil(rank / false_alarm_rate) - 1, 1)
    # k / alpha is rounded; settle it with the comparison that decides.
    while rank / (needed + 1) > false_alarm_rate:
        needed += 1
    while needed > 1 and rank / needed <= false_alarm_rate:
        needed -= 1
    return needed


def with_tolerance(held_out_scores: Numbers, rounding: float = 0.0) -> NDArray[np.float64]:
    """Held-out scores, increased by a tolerance above numerical noise.

    A network's outputs for an image differ a little between a batch of one and a larger one.
    Without the tolerance, an image that equals many held-out ones (a test card, a black frame)
    would score above all of them, or below, by chance; with it ties stay ties, and count against
    flagging.

    Args:
        held_out_scores: (n,).
        rounding: the largest difference measured between scores of one image. Twice that, a
            ten-thousandth of the scores' spread (see ``spread``), and a ten-millionth of the score
            itself are added. So one score far above the others raises none but itself.

    Example:
        >>> p_values(2.0 + 1e-9, with_tolerance([1.0, 2.0, 2.0, 2.0])).item()
        0.8
    """
    held_out = _numbers("held_out_scores", held_out_scores)
    relative = 1e-7 * np.abs(held_out, where=np.isfinite(held_out), out=np.zeros_like(held_out))
    return np.asarray(held_out + (2 * rounding + 1e-4 * spread(held_out)) + relative)


def spread(scores: NDArray[np.float64]) -> float:
    """The interquartile range of the finite scores, which no outlier changes; 0 without any.

    Example:
        >>> spread(np.array([0.0, 1.0, 2.0, 3.0, 1e9]))
        2.0
    """
    finite = scores[np.isfinite(scores)]
    if not finite.size:
        return 0.0
    quarter, three_quarters = np.quantile(finite, [0.25, 0.75])
    return float(three_quarters - quarter)


class FalseAlarmInterval(NamedTuple):
    """Where the realised false-alarm rate of one gate lies."""

    low: float
    mean: float
    high: float


def false_alarm_interval(
    num_held_out: int, false_alarm_rate: float, *, level: float = 0.9
) -> FalseAlarmInterval:
    """Where the false-alarm rate of a gate with this held-out set lies, with probability `level`.

    The guarantee holds on average over held-out sets. Given one of n scores without ties, the rate
    of the gate it makes is a draw from Beta(k, n + 1 - k), with mean k / (n + 1) <= alpha and k as
    in `threshold`. With ties the rate is lower.

    Args:
        num_held_out: n.
        false_alarm_rate: alpha, in (0, 1).
        level: 0.9 for the 5 % and 95 % quantiles.

    Paper: Vovk 2012, conditional validity.

    Example:
        >>> [round(x, 4) for x in false_alarm_interval(1000, 0.05)]
        [0.0392, 0.05, 0.0618]
    """
    level = _rate("A level", level)
    rank = threshold_rank(num_held_out, false_alarm_rate)
    from scipy.stats import beta  # takes most of a second to import, and only this needs it

    low, high = beta.interval(level, rank, num_held_out + 1 - rank)
    return FalseAlarmInterval(float(low), rank / (num_held_out + 1), float(high))


def false_alarm_p_value(
    num_flagged: int, num_images: int, num_held_out: int, false_alarm_rate: float
) -> float:
    """The probability that a gate flags as many new ID images or more, if they are like held-out.

    Given one set of n held-out scores the rate of the gate is a draw from Beta(k, n + 1 - k), see
    `false_alarm_interval`, so the number flagged of new exchangeable images is beta-binomial. A
    small value: more false alarms than the luck of the held-out set and of these images explains.
    With ties the probability is lower than this.

    Args:
        num_flagged: of these images.
        num_images: ID images that fitted nothing.
        num_held_out: n.
        false_alarm_rate: alpha, in (0, 1).

    Example:
        >>> round(false_alarm_p_value(3, 4, 1, 0.5), 4)  # 0 to 4 of 4 are equally probable
        0.4
    """
    rank = threshold_rank(num_held_out, false_alarm_rate)
    from scipy.stats import betabinom  # as above

    return float(betabinom.sf(num_flagged - 1, num_images, rank, num_held_out + 1 - rank))


def class_conditional_p_values(
    scores: NDArray[np.float64],
    labels: NDArray[np.int64],
    held_out_scores: NDArray[np.float64],
    held_out_labels: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Conformal p-value of each score among the held-out scores of its own class (Mondrian).

    P(p <= alpha | ID, class) <= alpha for every class; `p_values` promises it only on average.
    The label of a new input is what the network *predicts*, so the held-out labels must be the
    network's predictions too, not the true ones.

    Args:
        scores: (N,).
        labels: (N,), integers.
        held_out_scores: (n,).
        held_out_labels: (n,), integers.

    Raises:
        FitError: a class among `labels` has no held-out score.

    Example:
        >>> held_out, classes = np.array([1.0, 2.0, 9.0]), np.array([0, 0, 1])
        >>> new = np.array([5.0, 5.0])
        >>> class_conditional_p_values(new, np.array([0, 1]), held_out, classes).tolist()
        [0.3333333333333333, 1.0]
    """
    wanted = np.unique(labels)
    missing = np.setdiff1d(wanted, held_out_labels)
    if missing.size:
        raise FitError(
            f"No held-out scores for class {first_of([*map(str, missing)], 10)} "
            f"({missing.size} of {wanted.size} classes). "
            "Hold out more inputs, or use p_values, which needs no classes."
        )
    out = np.empty(scores.shape, dtype=np.float64)
    for label in wanted:
        mine = labels == label
        out[mine] = p_values(scores[mine], held_out_scores[held_out_labels == label])
    return out


def _numbers(name: str, values: Numbers) -> NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    array = np.asarray(values, dtype=np.float64)
    bad = int(np.isnan(array).sum())
    if bad:
        raise UsageError(
            f"{bad} of {array.size} {name} are NaN. Leave those inputs out, or find what gave them."
        )
    return array


def _sorted_held_out(held_out_scores: Numbers) -> NDArray[np.float64]:
    held_out = _numbers("held_out_scores", held_out_scores)
    if held_out.ndim != 1:
        raise UsageError(f"Expected held-out scores of shape (n,), got {held_out.shape}.")
    if held_out.size == 0:
        raise UsageError("There are no held-out scores. Give in-distribution inputs held out.")
    if bool((held_out[1:] >= held_out[:-1]).all()):
        return held_out
    return np.sort(held_out)


def _rate(name: str, rate: float) -> float:
    """A rate in double precision: NumPy would compare with a float32 in float32."""
    if not isinstance(rate, Real) or not 0 < rate < 1:
        raise UsageError(f"{name} lies strictly between 0 and 1, got {rate!r}.")
    if rate < _LEAST_RATE:
        raise UsageError(f"{name} is at least {_LEAST_RATE:g}, got {rate}.")
    return float(rate)
