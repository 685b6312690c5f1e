"""Bootstrap, paired test and seeds: against slow references, and by simulation."""

from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from goen.errors import UsageError
from goen.functional import ranking
from goen.metrics import (
    BootstrapIntervals,
    Interval,
    bootstrap,
    holm,
    ood_metrics,
    over_seeds,
    paired_auroc_test,
    paired_mean_auroc_test,
)
from goen.metrics._ood import curve_metrics

lawful = settings(deadline=None, derandomize=True)
few_values = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12).map(np.array)
COVERED = [f.name for f in fields(BootstrapIntervals) if f.type in (Interval, "Interval")]


def normal(num_id, num_ood, shift=1.0, decimals=15, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, num_id).round(decimals), rng.normal(shift, 1, num_ood).round(decimals)


def test_bootstrap_covers_every_metric_that_delong_does_not():
    others = {"auroc", "auroc_low", "auroc_high", "threshold", "num_id", "num_ood", "level"}
    assert set(COVERED) == asdict(ood_metrics([0.0], [1.0])).keys() - others


@lawful
@given(few_values, few_values, st.integers(0, 2**32))
def test_a_resample_has_the_metrics_of_the_samples_it_stands_for(id_scores, ood_scores, seed):
    t = ranking.tally(id_scores, ood_scores)
    rows = ranking.resample(t, 4, np.random.default_rng(seed))
    together = curve_metrics(rows)[0]
    for r in range(4):
        again = [
            np.repeat(t.scores, np.diff(rows.id_at_or_below[r]).astype(int)),
            np.repeat(t.scores, np.diff(rows.ood_at_or_below[r]).astype(int)),
        ]
        alone = ood_metrics(*again)
        for name in COVERED:
            assert together[name][r] == pytest.approx(getattr(alone, name), abs=1e-12), name


@pytest.mark.parametrize("decimals", [15, 0], ids=["no ties", "ties"])
def test_bootstrap_intervals_agree_with_a_slow_loop_over_resamples(decimals):
    scores = normal(60, 40, decimals=decimals)
    rng = np.random.default_rng(1)
    slow = [ood_metrics(*(rng.choice(side, side.size) for side in scores)) for _ in range(2000)]
    ours, whole = bootstrap(*scores, num_resamples=2000), ood_metrics(*scores)
    for name in COVERED:
        interval, estimate = getattr(ours, name), getattr(whole, name)
        assert interval.estimate == pytest.approx(estimate, abs=1e-15)
        values = np.array([getattr(m, name) for m in slow])
        share_below = np.mean(values < estimate) + np.mean(values == estimate) / 2
        bias = stats.norm.ppf(share_below)
        ends = np.quantile(values, stats.norm.cdf([2 * bias - 1.96, 2 * bias + 1.96]))
        assert (interval.low, interval.high) == pytest.approx(ends, abs=0.04), name


def test_bootstrap_in_small_chunks_draws_as_many_and_agrees(monkeypatch):
    scores, drawn, resample = normal(30, 20, decimals=1), [], ranking.resample

    def counting(counts, num, rng):
        drawn.append(num)
        return resample(counts, num, rng)

    at_once = bootstrap(*scores, num_resamples=2000)
    monkeypatch.setattr("goen.metrics._uncertainty._CHUNK", 50 * 300)
    monkeypatch.setattr(ranking, "resample", counting)
    in_chunks = bootstrap(*scores, num_resamples=2000)
    assert drawn == [300] * 6 + [200]
    for name in COVERED:
        one, other = getattr(at_once, name), getattr(in_chunks, name)
        assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=0.05), name


def test_bootstrap_repeats_itself_and_changes_with_the_seed():
    scores = normal(50, 50)
    assert bootstrap(*scores) == bootstrap(*scores, seed=0)
    assert bootstrap(*scores).aupr_out != bootstrap(*scores, seed=1).aupr_out


def test_bootstrap_of_perfect_separation_has_no_width():
    b = bootstrap([0.0, 1.0], [2.0, 3.0])
    assert b.fpr95_ood_positive == Interval(0.0, 0.0, 0.0)
    assert b.aupr_out == Interval(1.0, 1.0, 1.0)


def test_bootstrap_covers_average_precision_and_fpr95_of_binormal_draws():
    rng = np.random.default_rng(0)
    shift, num = 1.5, 200
    cut = np.linspace(10, -8, 100_001)
    tpr, fpr = stats.norm.sf(cut - shift), stats.norm.sf(cut)
    average_precision = np.sum(np.diff(tpr) * (tpr / (tpr + fpr))[1:])
    fpr95 = stats.norm.sf(stats.norm.ppf(0.05) + shift)
    hits = np.zeros(2)
    for seed in range(400):
        b = bootstrap(
            rng.normal(0, 1, num), rng.normal(shift, 1, num), num_resamples=200, seed=seed
        )
        hits[0] += b.aupr_out.low <= average_precision <= b.aupr_out.high
        hits[1] += b.fpr95_ood_positive.low <= fpr95 <= b.fpr95_ood_positive.high
    assert hits / 400 == pytest.approx(0.94, abs=0.03)


@pytest.mark.parametrize("num_resamples", [0, -1, 1.5])
def test_a_senseless_number_of_resamples_is_an_error(num_resamples):
    with pytest.raises(UsageError, match="num_resamples must be an integer, at least 1"):
        bootstrap([0.0], [1.0], num_resamples=num_resamples)


def paired_by_loop(id_a, ood_a, id_b, ood_b):
    """DeLong, DeLong and Clarke-Pearson (1988): covariance of both methods' placements."""

    def beats(high, low):
        return 1.0 if high > low else 0.5 if high == low else 0.0

    by_ood = [[np.mean([beats(o, i) for i in ids]) for o in oods] for ids, oods in
              ((id_a, ood_a), (id_b, ood_b))]  # fmt: skip
    by_id = [[np.mean([beats(o, i) for o in oods]) for i in ids] for ids, oods in
             ((id_a, ood_a), (id_b, ood_b))]  # fmt: skip
    covariance = np.cov(by_ood) / len(ood_a) + np.cov(by_id) / len(id_a)
    contrast = np.array([1.0, -1.0])
    return np.mean(by_ood[0]) - np.mean(by_ood[1]), contrast @ covariance @ contrast


@pytest.mark.parametrize("decimals", [15, 0], ids=["no ties", "ties"])
def test_paired_test_matches_delongs_covariance_by_loop(decimals):
    id_a, ood_a = normal(40, 30, decimals=decimals)
    id_b, ood_b = (
        s + n for s, n in zip((id_a, ood_a), normal(40, 30, 0, decimals, 1), strict=True)
    )
    difference, variance = paired_by_loop(id_a, ood_a, id_b, ood_b)
    t = paired_auroc_test(id_a=id_a, ood_a=ood_a, id_b=id_b, ood_b=ood_b)
    assert t.difference == pytest.approx(difference, abs=1e-12)
    assert t.auroc_a == pytest.approx(ood_metrics(id_a, ood_a).auroc, abs=1e-12)
    assert t.auroc_b == pytest.approx(ood_metrics(id_b, ood_b).auroc, abs=1e-12)
    # Welch's test on the placement differences is the same test, by SciPy.
    by_ood = (ranking.placements(id_a, ood_a)[0] - ranking.placements(id_b, ood_b)[0]) / 40
    by_id = (ranking.placements(id_a, ood_a)[1] - ranking.placements(id_b, ood_b)[1]) / 30
    assert variance == pytest.approx(np.var(by_ood, ddof=1) / 30 + np.var(by_id, ddof=1) / 40)
    # Two samples whose means differ by the difference and whose variances are those.
    welch = stats.ttest_ind(by_ood, by_id - by_id.mean(), equal_var=False)
    assert t.p_value == pytest.approx(welch.pvalue, abs=1e-12)
    ends = welch.confidence_interval(0.95)
    assert (t.low, t.high) == pytest.approx((ends.low, ends.high), abs=1e-12)


def test_paired_test_worked_by_hand():
    # a: OOD 2 beats 1 of 2 ID, OOD 4 beats 2. b: OOD 4 beats 2, OOD 0 beats none.
    t = paired_auroc_test(id_a=[1, 3], ood_a=[2, 4], id_b=[1, 3], ood_b=[4, 0])
    assert (t.auroc_a, t.auroc_b, t.difference) == (0.75, 0.5, 0.25)
    # Differences: OOD (1 - 2, 2 - 0) / 2 = -1/2, 1, variance 9/8, over 2: 9/16.
    # ID (2 - 1, 1 - 1) / 2 = 1/2, 0, variance 1/8, over 2: 1/16. Sum 10/16.
    # Degrees of freedom: 1 / (0.81 + 0.01) = 1 / 0.82.
    freedom, error = 1 / 0.82, (10 / 16) ** 0.5
    assert t.p_value == pytest.approx(2 * stats.t.sf(0.25 / error, freedom), abs=1e-12)


def test_paired_test_rejects_equal_methods_in_5_percent_of_draws():
    num_id, num_ood, shared = 80, 120, 0.6
    rng = np.random.default_rng(7)

    def two_methods(num):
        own = (1 - shared) ** 0.5 * rng.normal(size=(2, num))
        return own + shared**0.5 * rng.normal(size=num)

    rejected = 0
    for _ in range(2000):
        (id_a, id_b), (ood_a, ood_b) = two_methods(num_id), two_methods(num_ood) + 1.2
        rejected += paired_auroc_test(id_a=id_a, ood_a=ood_a, id_b=id_b, ood_b=ood_b).p_value < 0.05
    assert rejected / 2000 == pytest.approx(0.05, abs=0.015)


def test_paired_test_sees_what_two_separate_intervals_cannot():
    id_a, ood_a = normal(500, 500)
    rng = np.random.default_rng(3)
    id_b, ood_b = id_a + rng.normal(0, 0.4, 500), ood_a + rng.normal(0, 0.4, 500)
    a, b = ood_metrics(id_a, ood_a), ood_metrics(id_b, ood_b)
    assert a.auroc_low < b.auroc_high  # the intervals overlap
    assert paired_auroc_test(id_a=id_a, ood_a=ood_a, id_b=id_b, ood_b=ood_b).p_value < 0.02


@lawful
@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**32))
def test_changing_the_methods_changes_the_sign_and_nothing_else(num_id, num_ood, seed):
    rng = np.random.default_rng(seed)
    id_a, id_b = rng.integers(-2, 3, (2, num_id))
    ood_a, ood_b = rng.integers(-2, 3, (2, num_ood))
    ab = paired_auroc_test(id_a=id_a, ood_a=ood_a, id_b=id_b, ood_b=ood_b)
    ba = paired_auroc_test(id_a=id_b, ood_a=ood_b, id_b=id_a, ood_b=ood_a)
    assert ab.difference == -ba.difference
    assert ab.p_value == pytest.approx(ba.p_value, abs=1e-12)
    assert (ab.low, ab.high) == pytest.approx((-ba.high, -ba.low), abs=1e-12)
    assert -1 <= ab.low <= ab.difference <= ab.high <= 1
    assert ab.low < ab.high
    assert 0 <= ab.p_value <= 1


def test_methods_that_rank_alike_do_not_differ():
    id_scores, ood_scores = normal(50, 50)
    t = paired_auroc_test(
        id_a=id_scores, ood_a=ood_scores, id_b=id_scores * 8, ood_b=ood_scores * 8
    )
    assert (t.difference, t.p_value) == (0.0, 1.0)
    assert t.low < 0 < t.high


def test_perfect_against_reversed_is_as_sure_as_that_many_coin_tosses():
    t = paired_auroc_test(id_a=[0] * 10, ood_a=[1] * 20, id_b=[1] * 10, ood_b=[0] * 20)
    assert t.difference == 1.0
    assert t.p_value == pytest.approx(2 * 0.5**10, abs=1e-12)


def test_one_sample_on_a_side_proves_nothing():
    t = paired_auroc_test(id_a=[0] * 99, ood_a=[1], id_b=[1] * 99, ood_b=[0])
    assert t.p_value == 1.0


def test_unequal_numbers_of_images_are_an_error():
    with pytest.raises(UsageError, match="same images for both methods, got 2 scores in ood_a"):
        paired_auroc_test(id_a=[0.0], ood_a=[1.0, 2.0], id_b=[0.0], ood_b=[1.0])


def test_seeds_worked_by_hand():
    s = over_seeds([1.0, 2.0, 3.0, 6.0])
    assert (s.mean, s.minimum, s.maximum, s.num_seeds) == (3.0, 1.0, 6.0, 4)
    assert s.sd == pytest.approx((14 / 3) ** 0.5, abs=1e-12)
    # t(0.975, 3) = 3.182446
    assert s.high - s.mean == pytest.approx(3.182446305 * (14 / 3) ** 0.5 / 2, abs=1e-8)
    assert s.mean - s.low == pytest.approx(s.high - s.mean, abs=1e-12)


def test_seeds_match_scipys_interval():
    values = np.random.default_rng(0).normal(0.93, 0.01, 5)
    ours = over_seeds(values, level=0.9)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert (ours.low, ours.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_one_seed_has_no_spread():
    s = over_seeds([0.9])
    assert s.mean == s.minimum == s.maximum == 0.9
    assert np.isnan([s.sd, s.low, s.high]).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "values is empty"),
        ([0.9, float("nan")], "values holds 1 NaN"),
        ([0.9, float("inf")], "values must be finite"),
        ([Interval(0.9, 0.8, 1.0)], "values must be real numbers"),
    ],
)
def test_what_cannot_be_averaged_over_seeds_is_an_error(values, message):
    with pytest.raises(UsageError, match=message):
        over_seeds(values)


def two_methods(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    known = rng.normal(0, 1, 400)
    sets = {"x": rng.normal(1.5, 1, 150), "y": rng.normal(0.8, 1, 300)}
    return {
        "id_a": known,
        "ood_a": sets,
        "id_b": known + rng.normal(0, 0.7, 400),
        "ood_b": {name: values + rng.normal(0, 0.7, values.size) for name, values in sets.items()},
    }


def test_the_mean_over_one_set_is_the_test_of_that_set() -> None:
    scores = two_methods(0)
    one = {k: v["y"] if isinstance(v, dict) else v for k, v in scores.items()}
    single = {k: {"y": v["y"]} if isinstance(v, dict) else v for k, v in scores.items()}
    assert paired_mean_auroc_test(**single) == paired_auroc_test(**one)


@pytest.mark.parametrize(("num_id", "num_ood"), [(1, 300), (300, 1)])
def test_the_mean_over_sets_is_as_cautious_with_one_image(num_id: int, num_ood: int) -> None:
    rng = np.random.default_rng(5)
    a, b = ((rng.normal(0, 1, num_id), rng.normal(shift, 1, num_ood)) for shift in (5.0, 0.0))
    one = paired_auroc_test(id_a=a[0], ood_a=a[1], id_b=b[0], ood_b=b[1])
    mean = paired_mean_auroc_test(id_a=a[0], ood_a={"x": a[1]}, id_b=b[0], ood_b={"x": b[1]})
    assert (mean.low, mean.high, mean.p_value) == (one.low, one.high, one.p_value)
    assert one.p_value > 0.2


def test_the_mean_over_sets_agrees_with_a_bootstrap_over_images() -> None:
    scores = two_methods(1)
    test = paired_mean_auroc_test(**scores)
    rng = np.random.default_rng(2)

    def auroc(known, strange):
        return float((known[:, None] < strange).mean())

    found = []
    for _ in range(600):
        rows = rng.integers(400, size=400)
        drawn = {n: rng.integers(v.size, size=v.size) for n, v in scores["ood_a"].items()}
        found.append(
            np.mean(
                [
                    auroc(scores["id_a"][rows], scores["ood_a"][n][drawn[n]])
                    - auroc(scores["id_b"][rows], scores["ood_b"][n][drawn[n]])
                    for n in drawn
                ]
            )
        )
    error = (test.high - test.low) / 2 / 1.96
    assert error == pytest.approx(np.std(found), rel=0.12)
    assert test.difference == pytest.approx(np.mean(found), abs=3 * error / 600**0.5 + 1e-3)
    assert test.p_value == pytest.approx(
        2 * stats.norm.sf(abs(test.difference) / error), rel=0.1, abs=1e-6
    )
    assert (test.num_id, test.num_ood) == (400, 450)


def test_equal_methods_over_sets_do_not_differ() -> None:
    scores = two_methods(3)
    same = {**scores, "id_b": scores["id_a"], "ood_b": scores["ood_a"]}
    test = paired_mean_auroc_test(**same)
    assert test.difference == 0
    assert test.p_value == 1


def test_methods_that_saw_other_sets_cannot_be_compared() -> None:
    scores = two_methods(4)
    for wrong in ({}, {"x": scores["ood_b"]["x"]}):
        with pytest.raises(UsageError, match="the same sets"):
            paired_mean_auroc_test(**{**scores, "ood_b": wrong})
    with pytest.raises(UsageError, match="one or more"):
        paired_mean_auroc_test(id_a=[1.0], ood_a={}, id_b=[1.0], ood_b={})


@pytest.mark.parametrize("p", [[1.5, -1.0], [float("nan"), 0.01], [[0.5]], 0.5])
def test_what_is_no_p_value_is_not_corrected(p: Any) -> None:
    with pytest.raises(UsageError, match=r"p_values must be a list of numbers in \[0, 1\], got"):
        holm(p)


def test_holms_correction_by_hand_and_against_its_definition() -> None:
    assert holm([]) == []
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    rng = np.random.default_rng(0)
    for _ in range(20):
        p = rng.uniform(0, 0.2, 7)
        # Rejected at level a: go up from the least while p <= a / (number left).
        for level in (0.01, 0.05, 0.1):
            rejected, left = set(), 7
            for i in np.argsort(p):
                if p[i] > level / left:
                    break
                rejected.add(int(i))
                left -= 1
            assert {i for i, q in enumerate(holm(p.tolist())) if q <= level} == rejected
        # never more lenient than Benjamini-Hochberg
        assert (np.array(holm(p.tolist())) >= stats.false_discovery_control(p) - 1e-12).all()
