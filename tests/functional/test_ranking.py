"""The counts behind the ranking metrics, against loops that cannot be wrong."""

from fractions import Fraction
from math import ceil, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from goen.functional import ranking

lawful = settings(deadline=None, derandomize=True)
few_values = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12).map(np.array)


def placements_by_loop(id_scores, ood_scores):
    def beats(high, low):
        return 1.0 if high > low else 0.5 if high == low else 0.0

    ood = [sum(beats(o, i) for i in id_scores) for o in ood_scores]
    return np.array(ood), np.array([sum(beats(o, i) for o in ood_scores) for i in id_scores])


@lawful
@given(few_values, few_values)
def test_tally_counts_what_lies_at_or_below_each_score(id_scores, ood_scores):
    t = ranking.tally(id_scores, ood_scores)
    assert t.scores.tolist() == sorted({*id_scores, *ood_scores})
    for k, score in enumerate(t.scores, start=1):
        assert t.id_at_or_below[k] == np.sum(id_scores <= score)
        assert t.ood_at_or_below[k] == np.sum(ood_scores <= score)
    assert t.id_at_or_below[0] == t.ood_at_or_below[0] == 0


@lawful
@given(few_values, few_values)
def test_tally_leaves_its_input_alone(id_scores, ood_scores):
    before = id_scores.copy(), ood_scores.copy()
    ranking.tally(id_scores, ood_scores)
    assert np.array_equal(id_scores, before[0])
    assert np.array_equal(ood_scores, before[1])


@lawful
@given(few_values, few_values)
def test_placements_and_auroc_match_the_loop_over_all_pairs(id_scores, ood_scores):
    by_ood, by_id = placements_by_loop(id_scores, ood_scores)
    ours = ranking.placements(id_scores, ood_scores)
    assert np.array_equal(ours[0], by_ood)
    assert np.array_equal(ours[1], by_id)
    area = by_ood.sum() / (id_scores.size * ood_scores.size)
    assert ranking.auroc(ranking.tally(id_scores, ood_scores)) == pytest.approx(area, abs=1e-15)


@pytest.mark.parametrize("steps", [1, 2, 7, 52, 53, 54])
def test_long_counts_are_summed_in_parts(steps, monkeypatch):
    rng = np.random.default_rng(0)
    counts = ranking.tally(rng.normal(0, 1, 25).round(1), rng.normal(1, 1, 40).round(2))
    resampled = ranking.resample(counts, 4, rng)

    def results():
        yield ranking.auroc(counts)
        yield ranking.auroc(resampled)
        yield ranking.delong_variances(counts, 0.7)
        for of in (counts, resampled):
            yield ranking.precision_recall_areas(*of.ood_first())
            yield ranking.precision_recall_areas(*of.id_first())

    whole = list(results())
    assert counts.scores.size == 53
    monkeypatch.setattr(ranking, "_STEPS", steps)
    for expected, found in zip(whole, results(), strict=True):
        assert np.allclose(found, expected, rtol=1e-13, atol=0)


def test_zero_and_minus_zero_are_one_score():
    assert ranking.tally(np.array([0.0]), np.array([-0.0])).scores.size == 1


def test_delong_variance_of_a_case_worked_by_hand():
    # Placements: OOD 2/3 and 1, ID 1, 1 and 1/2; both means 5/6.
    # OOD part: (2 (1/6)^2) / 1 / 2 = 1/36. ID part: (2 (1/6)^2 + (1/3)^2) / 2 / 3 = 1/36.
    t = ranking.tally(np.array([1.0, 2.0, 3.0]), np.array([2.5, 4.0]))
    assert ranking.auroc(t) == pytest.approx(5 / 6, abs=1e-15)
    assert ranking.delong_variances(t, 5 / 6) == pytest.approx((1 / 36, 1 / 36), abs=1e-15)


@pytest.mark.parametrize("decimals", [0, 1, 12], ids=["many ties", "ties", "no ties"])
def test_delong_variance_matches_the_variance_of_looped_placements(decimals):
    rng = np.random.default_rng(decimals)
    id_scores, ood_scores = (
        rng.normal(size=37).round(decimals),
        rng.normal(1, 2, 23).round(decimals),
    )
    by_ood, by_id = placements_by_loop(id_scores, ood_scores)
    expected = np.var(by_ood / 37, ddof=1) / 23, np.var(by_id / 23, ddof=1) / 37
    t = ranking.tally(id_scores, ood_scores)
    assert ranking.delong_variances(t, float(ranking.auroc(t))) == pytest.approx(
        expected, rel=1e-12
    )


def test_auroc_interval_is_delongs_on_the_logit_scale():
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(size=80), rng.normal(1, 1, 50)
    by_ood, by_id = placements_by_loop(id_scores, ood_scores)
    u, v = np.var(by_ood / 80, ddof=1) / 50, np.var(by_id / 50, ddof=1) / 80
    area = by_ood.mean() / 80
    freedom = (u + v) ** 2 / (u**2 / 49 + v**2 / 79)
    half = stats.t.ppf(0.95, freedom) * (u + v) ** 0.5 / (area * (1 - area))
    ends = [1 / (1 + np.exp(-(log(area / (1 - area)) + side * half))) for side in (-1, 1)]
    t = ranking.tally(id_scores, ood_scores)
    assert ranking.auroc_interval(t, area, 0.90) == pytest.approx(ends, abs=1e-12)


@pytest.mark.parametrize(("num_id", "num_ood"), [(1, 1), (1, 7), (40, 100), (10_000, 5_000)])
def test_perfect_separation_bounds_the_auroc_like_clopper_and_pearson(num_id, num_ood):
    low = stats.binomtest(min(num_id, num_ood), min(num_id, num_ood)).proportion_ci(0.95).low
    perfect = ranking.tally(np.zeros(num_id), np.ones(num_ood))
    assert ranking.auroc_interval(perfect, 1.0) == pytest.approx((low, 1.0), abs=1e-12)
    reversed_ = ranking.tally(np.ones(num_id), np.zeros(num_ood))
    assert ranking.auroc_interval(reversed_, 0.0) == pytest.approx((0.0, 1 - low), abs=1e-12)


def test_one_misplaced_sample_does_not_shrink_the_interval_below_perfect_separation():
    id_scores, ood_scores = np.arange(1000.0), np.arange(1000.0) + 2000
    perfect = ranking.tally(id_scores, ood_scores)
    ood_scores[0] = 998.5  # one pair of a million the wrong way round
    nearly = ranking.tally(id_scores, ood_scores)
    area = float(ranking.auroc(nearly))
    assert area == 1 - 1e-6
    low, high = ranking.auroc_interval(nearly, area)
    assert low < ranking.auroc_interval(perfect, 1.0)[0]
    assert area < high <= 1


def test_interval_of_a_constant_score_is_around_one_half_and_not_a_point():
    t = ranking.tally(np.full(50, 3.0), np.full(60, 3.0))
    low, high = ranking.auroc_interval(t, 0.5)
    assert low == pytest.approx(1 - high, abs=1e-12)
    # 50 KL(1/2 || p) = ln 40
    assert 50 * (0.5 * log(0.5 / low) + 0.5 * log(0.5 / (1 - low))) == pytest.approx(log(40))


@lawful
@given(st.floats(0, 1), st.integers(1, 10_000), st.sampled_from([0.5, 0.95, 0.999]))
def test_hoeffding_interval_holds_the_mean_and_ends_where_its_bound_is_spent(mean, num, level):
    low, high = ranking.hoeffding_interval(mean, num, level)
    assert 0 <= low <= mean <= high <= 1
    budget = log(2 / (1 - level))
    for end in (low, high):
        if 1e-6 < end < 1 - 1e-6:
            assert num * ranking.bernoulli_divergence(mean, end) == pytest.approx(budget, rel=1e-4)


def test_the_variance_of_a_mean_is_exactly_0_without_spread():
    for same in ([0.1, 0.1, 0.1], [0.1]):  # np.var of the first is not 0
        assert ranking.variance_of_mean(np.array(same)) == 0.0
    assert ranking.variance_of_mean(np.array([1.0, 2.0])) == 0.25
    assert ranking.variance_of_mean(np.array([1.0, 2.0, 6.0])) == 7 / 3


def test_a_difference_is_tested_by_students_t():
    parts = [(0.0004, 30), (0.0001, 12)]
    low, high, p_value = ranking.around(0.05, parts, 0.95)
    error, freedom = 0.0005**0.5, 0.0005**2 / (0.0004**2 / 29 + 0.0001**2 / 11)
    assert p_value == pytest.approx(2 * stats.t.sf(0.05 / error, freedom))
    reach = stats.t.ppf(0.975, freedom) * error
    assert (low, high) == (pytest.approx(0.05 - reach), pytest.approx(0.05 + reach))
    assert ranking.around(-0.05, parts, 0.95)[2] == p_value


def test_a_difference_without_variance_is_bounded_as_a_mean_of_values_in_0_to_1():
    parts = [(0.0, 9), (0.0, 7)]
    low, high, p_value = ranking.around(1.0, parts, 0.95)
    # KL(1 || p) = -ln p: p ** 7 is 0.025 at the lower end, and 2 * (1 / 2) ** 7 the p-value.
    assert (low, high) == (pytest.approx(2 * 0.025 ** (1 / 7) - 1), 1.0)
    assert p_value == pytest.approx(2 / 2**7)
    assert ranking.around(-1.0, parts, 0.95) == (-1.0, pytest.approx(-low), p_value)
    low, high, p_value = ranking.around(0.0, parts, 0.95)
    assert (low, p_value) == (pytest.approx(-high), 1.0)


def test_fpr_at_95_takes_the_least_count_that_is_at_least_95_percent():
    for total in range(1, 500):
        positives = np.arange(total + 1.0)
        needed = ceil(Fraction(95, 100) * total)
        assert ranking.fpr_at_tpr(positives, positives, 0.95) == needed / total


def test_fpr_at_tpr_needs_no_more_than_the_rate_asked_for_whatever_its_rounding():
    positives = np.arange(101.0)
    for needed in range(1, 101):  # 0.07 * 100 is above 7 in floating point
        assert ranking.fpr_at_tpr(positives, positives, needed / 100) == needed / 100


def test_youden_takes_the_highest_of_equal_thresholds():
    # O I O I from the top: TPR - FPR is 1/2 after the first and again after the third.
    t = ranking.tally(np.array([1.0, 3.0]), np.array([2.0, 4.0]))
    assert ranking.youden_index(*t.ood_first(), may_flag_none=True).tolist() == [1]
    # Both ID scores above: flagging nothing is best, and after it the lowest threshold.
    t = ranking.tally(np.array([3.0, 4.0]), np.array([1.0, 2.0]))
    assert ranking.youden_index(*t.ood_first(), may_flag_none=True).tolist() == [0]
    assert ranking.youden_index(*t.ood_first(), may_flag_none=False).tolist() == [4]


@lawful
@given(few_values, few_values, st.integers(0, 2**32))
def test_resampled_counts_are_those_of_samples_drawn_again(id_scores, ood_scores, seed):
    t = ranking.tally(id_scores, ood_scores)
    rows = ranking.resample(t, 3, np.random.default_rng(seed))
    assert rows.id_at_or_below.shape == rows.ood_at_or_below.shape == (3, t.scores.size + 1)
    for before, after in (
        (t.id_at_or_below, rows.id_at_or_below),
        (t.ood_at_or_below, rows.ood_at_or_below),
    ):
        assert np.all(after[:, 0] == 0)
        assert np.all(after[:, -1] == before[-1])  # stratified: each side keeps its size
        drawn = np.diff(after)
        assert np.all(drawn >= 0)
        assert np.all(drawn[:, np.diff(before) == 0] == 0)  # nothing that was not there


def test_resampling_draws_every_sample_equally_often_on_average():
    t = ranking.tally(np.array([0.0, 1.0, 1.0, 1.0, 2.0]), np.array([1.0, 5.0]))
    rows = ranking.resample(t, 20_000, np.random.default_rng(0))
    drawn = np.diff(rows.id_at_or_below)
    assert drawn.mean(axis=0) == pytest.approx([1, 3, 1, 0], abs=0.05)
    assert drawn.var(axis=0) == pytest.approx([0.8, 1.2, 0.8, 0], abs=0.05)  # binomial: n p (1 - p)
