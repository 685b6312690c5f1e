"""Conformal decisions: the definition, the edges of floating point, and the promise itself."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, iqr

from goen.errors import FitError, UsageError
from goen.functional.conformal import (
    class_conditional_p_values,
    false_alarm_interval,
    false_alarm_p_value,
    grouped_p_values,
    grouped_threshold,
    p_value_steps,
    p_values,
    p_values_of_sorted,
    required_held_out,
    spread,
    threshold,
    threshold_rank,
    with_tolerance,
)

laws = settings(derandomize=True, deadline=None, max_examples=150)
# Few distinct values, so that ties are everywhere.
tied_scores = st.integers(-3, 3).map(float) | st.sampled_from([-math.inf, math.inf, 0.1])
# The rates people type: two or three decimals.
decimal_rates = st.integers(1, 999).map(lambda i: i / 1000)


@laws
@given(st.integers(1, 400), decimal_rates)
def test_the_rank_is_that_of_fractions(count: int, rate: float) -> None:
    exact = Fraction(round(rate * 1000), 1000) * (count + 1)
    if exact < 1:
        with pytest.raises(FitError, match="needs at least"):
            threshold_rank(count, rate)
    else:
        assert threshold_rank(count, rate) == math.floor(exact)
        scores = np.random.default_rng(count).normal(size=count)
        assert threshold(scores, rate) == sorted(scores)[-math.floor(exact)]


# -- p-values --------------------------------------------------------------------------------


def test_p_values_of_a_case_worked_by_hand() -> None:
    held_out = [4.0, 1.0, 2.0, 2.0]
    # at least 0: 4; 1: 4; 1.5: 3; 2: 3; 3: 1; 4: 1; 5: 0
    p = p_values([0, 1, 1.5, 2, 3, 4, 5], held_out)
    assert p.tolist() == [1.0, 1.0, 0.8, 0.8, 0.4, 0.4, 0.2]


@laws
@given(
    scores=st.lists(tied_scores, max_size=10),
    held_out=st.lists(tied_scores, min_size=1, max_size=30),
)
def test_p_values_match_the_definition(scores: list[float], held_out: list[float]) -> None:
    expected = [(1 + sum(h >= s for h in held_out)) / (len(held_out) + 1) for s in scores]
    assert p_values(scores, held_out).tolist() == expected
    assert p_values(scores, sorted(held_out)).tolist() == expected
    ready = np.array(scores, np.float64), np.sort(held_out)
    assert p_values_of_sorted(*ready).tolist() == expected


def test_of_scores_that_are_not_checked_nan_has_the_least_p_value() -> None:
    p = p_values_of_sorted(np.array([np.nan, 1.5, np.inf]), np.array([1.0, 2.0, 3.0]))
    assert p.tolist() == [0.25, 0.75, 0.25]


def test_p_values_keep_the_shape_of_the_scores() -> None:
    held_out = np.arange(9.0)
    assert p_values(4.5, held_out).shape == ()
    assert float(p_values(4.5, held_out)) == 0.5
    assert p_values([4.5], held_out).tolist() == [0.5]
    assert p_values(np.zeros((2, 3)), held_out).shape == (2, 3)
    assert p_values([], held_out).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_and_arrays_give_the_same(dtype: torch.dtype) -> None:
    scores = torch.linspace(0, 1, 7, dtype=dtype).requires_grad_()
    held_out = torch.linspace(0, 1, 40, dtype=dtype)
    p = p_values(scores, held_out)
    assert p.dtype == np.float64
    assert p.tolist() == p_values(scores.tolist(), held_out.tolist()).tolist()
    assert threshold(held_out, 0.1) == threshold(held_out.tolist(), 0.1)


def test_inputs_are_left_alone() -> None:
    held_out = np.array([3.0, 1.0, 2.0])
    p_values([1.0], held_out)
    threshold(held_out, 0.5)
    assert held_out.tolist() == [3.0, 1.0, 2.0]


# -- the threshold ---------------------------------------------------------------------------


def test_threshold_of_a_case_worked_by_hand() -> None:
    held_out = np.arange(1.0, 20.0)  # n = 19
    assert threshold(held_out, 0.05) == 19  # k = 1
    assert threshold(held_out, 0.1) == 18  # k = 2
    assert threshold(held_out, 0.149) == 18
    assert threshold(held_out, 0.15) == 17
    assert threshold(held_out, 0.999) == 1  # k = 19: all above the least


@laws
@given(held_out=st.lists(tied_scores, min_size=1, max_size=60), rate=decimal_rates)
def test_threshold_and_p_value_decide_alike(held_out: list[float], rate: float) -> None:
    scores = np.array([-math.inf, *np.arange(-4, 4.5, 0.5), 0.1, math.inf])
    flagged = p_values(scores, held_out) <= rate
    try:
        limit = threshold(held_out, rate)
    except FitError:
        assert not flagged.any()
        assert len(held_out) < required_held_out(rate)
    else:
        assert (scores > limit).tolist() == flagged.tolist()


def test_rates_that_are_whole_only_in_decimal_lose_nothing() -> None:
    # floor(0.29 * 100) is 28 and floor(0.07 * 100) is 7 only by luck: 29 / 100 must be allowed.
    assert math.floor(0.29 * 100) == 28
    held_out = np.arange(99.0)
    assert threshold(held_out, 0.29) == 99 - 29
    for size in (100, 1000, 2000, 5000, 10_000):
        held_out = np.arange(size - 1.0)
        for percent in range(1, 100):
            rank = percent * size // 100
            assert threshold(held_out, percent / 100) == size - 1 - rank
            assert (p_values(held_out, held_out) <= percent / 100).sum() == rank - 1


@laws
@given(rate=st.floats(1e-6, 0.999), num_held_out=st.integers(1, 3000))
def test_threshold_and_p_value_decide_alike_for_any_float_rate(
    rate: float, num_held_out: int
) -> None:
    held_out = np.arange(float(num_held_out))
    scores = np.arange(-1.0, num_held_out + 1, 0.5)
    flagged = p_values(scores, held_out) <= rate
    if num_held_out < required_held_out(rate):
        with pytest.raises(FitError):
            threshold(held_out, rate)
        assert not flagged.any()
    else:
        assert np.array_equal(scores > threshold(held_out, rate), flagged)


def test_too_few_held_out_scores_says_how_many_are_needed() -> None:
    with pytest.raises(FitError, match=r"rate of 0\.05 needs at least 19 held-out scores, got 18"):
        threshold(np.arange(18.0), 0.05)
    assert threshold(np.arange(19.0), 0.05) == 18


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("rank", [1, 2, 3, 7])
def test_so_many_held_out_scores_give_the_rank_and_one_less_does_not(
    rate: float, rank: int
) -> None:
    needed = required_held_out(rate, rank)
    assert threshold_rank(needed, rate) >= rank
    if needed > 1 and needed > required_held_out(rate):
        assert threshold_rank(needed - 1, rate) < rank
    assert (required_held_out(0.05, 2), required_held_out(0.05, 5)) == (39, 99)


def test_required_held_out_is_one_less_than_the_inverse_rate() -> None:
    assert [required_held_out(rate) for rate in (0.9, 0.5, 0.3, 0.1, 1e-9)] == [
        1,
        1,
        3,
        9,
        999_999_999,
    ]
    for denominator in range(2, 1000):
        rate = 1 / denominator
        assert required_held_out(rate) == denominator - 1
        threshold(np.arange(denominator - 1.0), rate)
        below = math.nextafter(rate, 0)
        assert required_held_out(below) == denominator
        with pytest.raises(FitError):
            threshold(np.arange(denominator - 1.0), below)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, math.nan, "0.05", None])
def test_rates_outside_zero_and_one_are_refused(rate: float) -> None:
    for call in (
        lambda: threshold([1.0, 2.0], rate),
        lambda: required_held_out(rate),
        lambda: false_alarm_interval(100, rate),
        lambda: false_alarm_interval(100, 0.1, level=rate),
    ):
        with pytest.raises(UsageError, match="strictly between 0 and 1"):
            call()


def test_numbers_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(UsageError, match="1 of 2 scores are NaN"):
        p_values([1.0, math.nan], [1.0])
    with pytest.raises(UsageError, match="1 of 3 held_out_scores are NaN"):
        p_values([1.0], [1.0, 2.0, math.nan])
    with pytest.raises(UsageError, match="held_out_scores are NaN"):
        threshold([math.nan] * 20, 0.1)
    with pytest.raises(UsageError, match="no held-out scores"):
        p_values([1.0], [])
    with pytest.raises(UsageError, match=r"shape \(n,\)"):
        p_values([1.0], [[1.0]])


# -- the promise -----------------------------------------------------------------------------


@pytest.mark.parametrize("decimals", [None, 1, 0], ids=["continuous", "tied", "heavily tied"])
@pytest.mark.parametrize(("num_held_out", "rate"), [(99, 0.1), (150, 0.05), (19, 0.05)])
def test_false_alarm_rate_is_kept_over_a_thousand_draws(
    decimals: int | None, num_held_out: int, rate: float
) -> None:
    rng = np.random.default_rng(0)
    rates = np.empty(1000)
    for draw in range(1000):
        scores = rng.gumbel(size=num_held_out + 200)
        if decimals is not None:
            scores = scores.round(decimals)
        held_out, new = scores[:num_held_out], scores[num_held_out:]
        flagged = new > threshold(held_out, rate)
        assert np.array_equal(flagged, p_values(new, held_out) <= rate)
        rates[draw] = flagged.mean()
    error = rates.std(ddof=1) / math.sqrt(len(rates))
    assert rates.mean() <= rate + 2 * error
    if decimals is None:  # and not needlessly cautious: the mean is k / (n + 1)
        exact = math.floor(rate * (num_held_out + 1) + 1e-9) / (num_held_out + 1)
        assert rates.mean() >= exact - 3 * error


def test_realised_rate_falls_into_the_interval_as_often_as_promised() -> None:
    rng = np.random.default_rng(1)
    low, mean, high = false_alarm_interval(200, 0.1)
    held_out = rng.random((2000, 200))  # uniform scores: the rate of a threshold t is 1 - t
    realised = np.array([1 - threshold(row, 0.1) for row in held_out])
    assert mean == 20 / 201
    assert realised.mean() == pytest.approx(mean, abs=4 * 0.0212 / math.sqrt(2000))
    assert ((low <= realised) & (realised <= high)).mean() == pytest.approx(0.9, abs=0.025)


def test_false_alarms_are_as_probable_as_simulated() -> None:
    rng = np.random.default_rng(2)
    held_out, new = rng.random((4000, 60)), rng.random((4000, 30))
    flagged = np.array(
        [(row > threshold(held, 0.1)).sum() for held, row in zip(held_out, new, strict=True)]
    )
    for count in (0, 2, 4, 7):
        p = false_alarm_p_value(count, 30, 60, 0.1)
        assert (flagged >= count).mean() == pytest.approx(p, abs=4 * 0.5 / math.sqrt(4000))
    assert false_alarm_p_value(0, 30, 60, 0.1) == 1.0
    # n = 1, alpha = 1/2: every count from 0 to 4 of 4 has probability 1/5
    assert false_alarm_p_value(4, 4, 1, 0.5) == pytest.approx(0.2)


def test_interval_of_a_case_worked_by_hand() -> None:
    # n = 1, alpha = 1/2, k = 1: Beta(1, 1), uniform
    assert false_alarm_interval(1, 0.5) == pytest.approx((0.05, 0.5, 0.95))
    low, mean, high = false_alarm_interval(5000, 0.05, level=0.5)
    assert mean == 250 / 5001
    assert (low, high) == pytest.approx(tuple(beta.ppf([0.25, 0.75], 250, 4751)))
    with pytest.raises(FitError, match="needs at least 99"):
        false_alarm_interval(50, 0.01)


# -- per class -------------------------------------------------------------------------------


def test_class_conditional_p_values_match_p_values_class_by_class() -> None:
    rng = np.random.default_rng(2)
    held_out, held_out_labels = rng.normal(size=300).round(1), rng.integers(0, 4, 300)
    scores, labels = rng.normal(size=50).round(1), rng.integers(0, 4, 50)
    p = class_conditional_p_values(scores, labels, held_out, held_out_labels)
    for i in range(50):
        mine = held_out[held_out_labels == labels[i]]
        assert p[i] == (1 + (mine >= scores[i]).sum()) / (len(mine) + 1)


def test_class_conditional_rate_is_kept_in_every_class() -> None:
    rng = np.random.default_rng(3)
    rates = np.zeros((400, 2))
    for draw in range(400):
        labels = rng.integers(0, 2, 400)
        scores = rng.normal(size=400) * (1 + 3 * labels)  # class 1 scores far wider
        p = class_conditional_p_values(scores[200:], labels[200:], scores[:200], labels[:200])
        for c in range(2):
            rates[draw, c] = (p[labels[200:] == c] <= 0.1).mean()
    assert (rates.mean(axis=0) <= 0.1 + 2 * rates.std(axis=0) / 20).all()
    assert (rates.mean(axis=0) >= 0.08).all()


def test_class_without_held_out_scores_is_named() -> None:
    with pytest.raises(FitError, match=r"class 2, 7 \(2 of 3 classes\)"):
        class_conditional_p_values(np.ones(3), np.array([0, 2, 7]), np.ones(2), np.arange(2))


def test_a_rate_in_single_precision_decides_as_its_double_does() -> None:
    held_out, scores = np.arange(9.0), np.arange(0, 9, 0.5)
    for rate in np.linspace(0.15, 0.95, 30).astype(np.float32):
        above = scores > threshold(held_out, rate)
        assert np.array_equal(above, p_values(scores, held_out) <= float(rate))
        assert required_held_out(rate) == required_held_out(float(rate))


def test_a_rate_that_nobody_can_mean_is_refused_at_once() -> None:
    for rate in (1e-13, 1e-25, 5e-324):
        with pytest.raises(UsageError, match="at least 1e-12"):
            required_held_out(rate)
    assert required_held_out(1e-9) == 10**9 - 1
    assert required_held_out(1e-12) == 10**12 - 1


def test_raised_scores_keep_ties_and_little_else() -> None:
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(5, 2, 1_000), np.full(50, 40.0)])
    higher = with_tolerance(scores, rounding=1e-3)
    expected = 2e-3 + 1e-4 * iqr(scores) + 1e-7 * np.abs(scores)
    assert np.allclose(higher - scores, expected, rtol=1e-6)
    assert p_values(40 + 2e-3, higher).item() == pytest.approx(51 / 1051)
    assert p_values(40 + 2e-3, scores).item() == pytest.approx(1 / 1051)
    assert with_tolerance([3.0, 3.0, 3.0]).tolist() == pytest.approx([3 + 3e-7] * 3, abs=1e-12)
    assert np.abs(p_values(scores, higher) - p_values(scores, scores)).max() < 0.004


def test_an_outlier_among_held_out_scores_raises_no_other() -> None:
    scores = np.random.default_rng(0).normal(size=400)
    usual = threshold(with_tolerance(scores), 0.05)
    for outlier in (1e6, 1e300, -1e300, np.inf, -np.inf):
        scores[0] = outlier
        higher = with_tolerance(scores)
        assert threshold(higher, 0.05) == pytest.approx(usual, abs=0.05)
        assert p_values(5.0, higher).item() <= 2 / 401
        assert (np.argsort(higher) == np.argsort(scores)).all()
    assert spread(np.array([np.inf, -np.inf])) == 0.0


# -- groups --------------------------------------------------------------------------------------

grouped_scores = st.lists(st.tuples(tied_scores, st.integers(0, 6)), min_size=1, max_size=40)


def exact_p_value(score: float, held_out: list[tuple[float, int]]) -> Fraction:
    """The definition, group by group."""
    groups = {group for _, group in held_out}
    total = Fraction(1)
    for group in groups:
        mine = [s for s, g in held_out if g == group]
        total += Fraction(sum(s >= score for s in mine), len(mine))
    return total / (len(groups) + 1)


def test_grouped_p_values_of_a_case_worked_by_hand() -> None:
    # Group 0: 1, 2, 3, 4. Group 1: 3, 5. Group 2: 2.
    scores, groups = [3.0, 1.0, 2.0, 3.0, 5.0, 4.0, 2.0], np.array([0, 0, 0, 1, 1, 0, 2])
    # At least 2.5: two of four, two of two, none of one.
    p = grouped_p_values([0.0, 2.0, 2.5, 4.5, 6.0], scores, groups)
    assert p.tolist() == [1.0, 3.75 / 4, 2.5 / 4, 1.5 / 4, 0.25]
    steps = p_value_steps(groups[np.argsort(scores, kind="stable")])
    assert sorted(scores)[grouped_threshold(steps, 0.4) - 1] == 4.0


@laws
@given(grouped_scores, st.lists(tied_scores, min_size=1, max_size=5), decimal_rates)
def test_grouped_p_values_are_rounded_once_and_decide_as_the_threshold_does(
    held_out: list[tuple[float, int]], scores: list[float], rate: float
) -> None:
    known, groups = np.array([s for s, _ in held_out]), np.array([g for _, g in held_out])
    found = grouped_p_values(scores, known, groups)
    exact = [exact_p_value(score, held_out) for score in scores]
    assert found.tolist() == [p.numerator / p.denominator for p in exact]
    order = np.argsort(known, kind="stable")
    steps = p_value_steps(groups[order])
    count = len({*groups.tolist()})
    if count < required_held_out(rate):
        with pytest.raises(FitError, match=f"{required_held_out(rate)} groups .* got {count}"):
            grouped_threshold(steps, rate)
        return
    limit = known[order][grouped_threshold(steps, rate) - 1]
    every = np.concatenate([scores, known, np.nextafter(known, np.inf)])
    assert ((every > limit) == (grouped_p_values(every, known, groups) <= rate)).all()


def test_a_p_value_equal_to_the_rate_is_flagged() -> None:
    steps = p_value_steps(np.array([0, 1, 1, 2]))
    assert steps.tolist() == [1.0, 0.75, 0.625, 0.5, 0.25]
    assert [grouped_threshold(steps, rate) for rate in (0.25, 0.499, 0.5, 0.625)] == [4, 4, 3, 2]


def test_ten_tenths_are_one() -> None:
    # 0.1 added ten times is less than 1: the p-value would be below 0.5.
    scores, groups = np.arange(10.0), np.zeros(10, int)
    assert grouped_p_values(0.0, scores, groups) == 1.0
    halves = np.concatenate([scores, [-1.0]]), np.concatenate([groups, [1]])
    assert grouped_p_values(0.0, *halves) == 2 / 3


@laws
@given(st.lists(tied_scores, min_size=1, max_size=30), st.lists(tied_scores, max_size=9))
def test_groups_of_one_image_are_images(held_out: list[float], scores: list[float]) -> None:
    found = grouped_p_values(scores, held_out, np.arange(len(held_out)))
    assert found.tolist() == p_values(scores, held_out).tolist()


def test_an_image_of_a_new_group_is_flagged_at_the_rate() -> None:
    # Scores within a group are correlated by 0.99, and the groups differ in size.
    rng, flagged, as_images, total = np.random.default_rng(0), 0, 0, 4000
    for _ in range(total):
        sizes = rng.integers(1, 40, size=29)
        groups = np.repeat(np.arange(29), sizes)
        held_out = rng.normal(0, 0.99**0.5, 29)[groups] + rng.normal(0, 0.1, len(groups))
        new = rng.normal(0, 0.99**0.5) + rng.normal(0, 0.1)
        flagged += grouped_p_values(new, held_out, groups) <= 0.1
        as_images += p_values(new, held_out) <= 0.1
    spread_of_rate = (0.1 * 0.9 / total) ** 0.5
    assert 0.05 < flagged / total < 0.1 + 3 * spread_of_rate
    assert as_images / total > 0.1 + 3 * spread_of_rate  # what groups are for
