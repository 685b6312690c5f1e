"""`ood_metrics`: hand-worked cases, scikit-learn, and the laws of ranking."""

from dataclasses import FrozenInstanceError, asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn.metrics import (
    auc,
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)

from goen.errors import UsageError
from goen.metrics import ood_metrics

lawful = settings(deadline=None, derandomize=True)
# Small integers: ties are frequent and every increasing map below is exact.
few_values = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=25).map(np.array)


def from_sklearn(id_scores, ood_scores):
    scores = np.concatenate([id_scores, ood_scores])
    is_ood = np.repeat([False, True], [len(id_scores), len(ood_scores)])
    out = {"auroc": roc_auc_score(is_ood, scores)}
    for side, label, score in (("out", is_ood, scores), ("in", ~is_ood, -scores)):
        out[f"aupr_{side}"] = average_precision_score(label, score)
        precision, recall, _ = precision_recall_curve(label, score)
        out[f"aupr_{side}_trapezoid"] = auc(recall, precision)
        fpr, tpr, _ = roc_curve(label, score, drop_intermediate=False)
        name = "fpr95_ood_positive" if side == "out" else "fpr95_id_positive"
        out[name] = fpr[np.argmax(tpr >= 0.95)]
    fpr, tpr, thresholds = roc_curve(is_ood, scores, drop_intermediate=False)
    # Rounded, so that points which are equal in exact arithmetic are equal here.
    best = np.argmax(np.round(tpr - fpr, 12))
    out["threshold"] = thresholds[best]
    out["detection_accuracy"] = np.mean((scores >= thresholds[best]) == is_ood)
    out["balanced_detection_accuracy"] = (tpr[best] + 1 - fpr[best]) / 2
    return out


def normal(num_id, num_ood, shift=1.0, decimals=15, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, num_id).round(decimals), rng.normal(shift, 1.5, num_ood).round(decimals)


CASES = {
    "random": normal(400, 300),
    "random, far more ID": normal(1000, 13),
    "random, far more OOD": normal(11, 1000),
    "worse than chance": normal(100, 80, shift=-1.0),
    "tied": normal(400, 300, decimals=1),
    "hardly two values": normal(100, 300, decimals=0, shift=0.2),
    "saturated": tuple(np.clip(s, 0, 1) for s in normal(300, 200)),
    "constant": (np.full(7, 2.0), np.full(9, 2.0)),
    "constant, apart": (np.full(7, 2.0), np.full(9, 3.0)),
    "constant, reversed": (np.full(7, 3.0), np.full(9, 2.0)),
    "one against one": (np.array([0.0]), np.array([1.0])),
    "one against one, tied": (np.array([0.0]), np.array([0.0])),
    "one against three": (np.array([0.0]), np.array([-1.0, 0.0, 1.0])),
    "three against one": (np.array([0.0, 2.0, 2.0]), np.array([2.0])),
    "huge and tiny": (np.array([-1e300, 1e-300, 0.0]), np.array([1e300, 2e-300])),
}


@pytest.mark.parametrize("case", CASES)
def test_every_metric_matches_sklearn(case):
    id_scores, ood_scores = CASES[case]
    ours = asdict(ood_metrics(id_scores, ood_scores))
    for name, expected in from_sklearn(id_scores, ood_scores).items():
        assert ours[name] == pytest.approx(expected, abs=1e-12), name


@lawful
@given(few_values, few_values)
def test_every_metric_matches_sklearn_on_small_tied_samples(id_scores, ood_scores):
    ours = asdict(ood_metrics(id_scores, ood_scores))
    for name, expected in from_sklearn(id_scores, ood_scores).items():
        assert ours[name] == pytest.approx(expected, abs=1e-12), name


def test_a_case_worked_by_hand():
    # From the top: O .8, I .6, O .4, I .3, I .2, I .1
    m = ood_metrics([0.1, 0.2, 0.3, 0.6], [0.4, 0.8])
    assert m.auroc == 7 / 8  # .4 beats three of four, .8 all
    assert m.aupr_out == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 3, abs=1e-15)
    assert m.aupr_out_trapezoid == pytest.approx(1 / 2 * 1 + 1 / 2 * (1 / 2 + 2 / 3) / 2, abs=1e-15)
    assert m.aupr_in == pytest.approx(3 / 4 * 1 + 1 / 4 * 4 / 5, abs=1e-15)
    assert m.aupr_in_trapezoid == pytest.approx(3 / 4 + 1 / 4 * (3 / 4 + 4 / 5) / 2, abs=1e-15)
    assert m.fpr95_ood_positive == 1 / 4  # to flag both OOD is to flag .6 too
    assert m.fpr95_id_positive == 1 / 2  # to accept all four ID is to accept .4 too
    assert m.threshold == 0.4
    assert m.detection_accuracy == 5 / 6
    assert m.balanced_detection_accuracy == (1 + 3 / 4) / 2
    assert (m.num_id, m.num_ood) == (4, 2)


def test_a_tied_case_worked_by_hand():
    m = ood_metrics([0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0])
    assert m.auroc == 8.5 / 12  # OOD 0 ties two: 1; each OOD 1 beats two and ties one: 2.5
    assert m.aupr_out == pytest.approx(3 / 4 * 3 / 4 + 1 / 4 * 4 / 7, abs=1e-15)
    assert m.aupr_out_trapezoid == pytest.approx(23 / 28, abs=1e-15)
    assert m.aupr_in == pytest.approx(2 / 3 * 2 / 3 + 1 / 3 * 3 / 7, abs=1e-15)
    assert m.fpr95_ood_positive == 1.0  # the fourth OOD ties with the ID at 0
    assert m.fpr95_id_positive == 1.0
    assert m.threshold == 1.0
    assert m.detection_accuracy == 5 / 7
    assert m.balanced_detection_accuracy == pytest.approx((3 / 4 + 2 / 3) / 2, abs=1e-15)


def test_the_two_fpr95_differ_by_more_than_rounding():
    # Two ID samples of twenty lie above everything; OOD reaches one step into ID.
    id_scores, ood_scores = [*range(18), 100.0, 101.0], [17.5] * 20
    m = ood_metrics(id_scores, ood_scores)
    assert m.fpr95_ood_positive == 0.1
    assert m.fpr95_id_positive == 1.0


def test_fpr95_counts_nineteen_of_twenty_as_enough():
    ood = [*range(1, 20), -100.0]  # the twentieth lies below all ID
    assert ood_metrics([0.0, 0.5, -1.0], ood).fpr95_ood_positive == 0.0


def test_a_score_that_tells_nothing_flags_nothing():
    m = ood_metrics([2.0] * 3, [2.0])
    assert m.threshold == float("inf")
    assert m.detection_accuracy == 3 / 4
    assert (m.auroc, m.balanced_detection_accuracy, m.aupr_out) == (0.5, 0.5, 0.25)
    assert m.fpr95_ood_positive == m.fpr95_id_positive == 1.0


def test_aupr_moves_with_the_ratio_and_auroc_does_not():
    id_scores, ood_scores = normal(200, 200)
    even, uneven = (
        ood_metrics(id_scores, ood_scores),
        ood_metrics(np.tile(id_scores, 10), ood_scores),
    )
    assert uneven.aupr_out < even.aupr_out - 0.2
    assert uneven.aupr_in > even.aupr_in + 0.1
    same = ("auroc", "fpr95_ood_positive", "fpr95_id_positive", "balanced_detection_accuracy")
    for name in same:
        assert getattr(uneven, name) == pytest.approx(getattr(even, name), abs=1e-12)


@lawful
@given(few_values, few_values)
def test_only_order_counts(id_scores, ood_scores):
    before = asdict(ood_metrics(id_scores, ood_scores))
    for increasing in (
        lambda s: s * 2.0**-30,
        lambda s: s * 2.0**900,
        lambda s: s**3,
        lambda s: np.where(s == 4, np.inf, np.where(s == -4, -np.inf, s)),
    ):
        after = asdict(ood_metrics(increasing(id_scores), increasing(ood_scores)))
        if np.inf in increasing(np.append(id_scores, ood_scores)) and before["threshold"] == np.inf:
            continue  # "flag nothing" cannot be said of an infinite score; tested below
        assert after.pop("threshold") == increasing(np.array(before["threshold"]))
        assert after == {name: value for name, value in before.items() if name != "threshold"}


def test_infinite_scores_are_ranked_and_decided():
    inf = float("inf")
    m = ood_metrics([-inf, 0.0], [inf, inf, 0.0])
    assert m.auroc == (2 + 2 + 1.5) / 6
    assert m.threshold == inf  # flags exactly the two infinite scores
    assert m.detection_accuracy == 4 / 5
    useless = ood_metrics([inf, inf], [inf])
    assert useless.threshold == inf
    assert useless.detection_accuracy == 1 / 3  # score >= inf flags all three


@lawful
@given(few_values, few_values)
def test_reversing_the_score_takes_the_auroc_from_one(id_scores, ood_scores):
    forward, backward = ood_metrics(id_scores, ood_scores), ood_metrics(-id_scores, -ood_scores)
    assert backward.auroc == pytest.approx(1 - forward.auroc, abs=1e-15)
    assert backward.auroc_low == pytest.approx(1 - forward.auroc_high, abs=1e-9)
    assert backward.auroc_high == pytest.approx(1 - forward.auroc_low, abs=1e-9)


@lawful
@given(few_values, few_values)
def test_changing_sides_and_sign_swaps_the_two_conventions(id_scores, ood_scores):
    here, there = ood_metrics(id_scores, ood_scores), ood_metrics(-ood_scores, -id_scores)
    assert here.auroc == pytest.approx(there.auroc, abs=1e-15)
    assert here.aupr_out == pytest.approx(there.aupr_in, abs=1e-12)
    assert here.aupr_out_trapezoid == pytest.approx(there.aupr_in_trapezoid, abs=1e-12)
    assert here.fpr95_ood_positive == there.fpr95_id_positive


@lawful
@given(few_values, few_values, st.randoms(use_true_random=False), st.integers(0, 25))
def test_order_of_samples_and_batches_do_not_matter(id_scores, ood_scores, random, cut):
    whole = ood_metrics(id_scores, ood_scores)
    shuffled = random.sample(list(id_scores), len(id_scores))
    batches = [ood_scores[cut:], ood_scores[:cut]]
    assert ood_metrics(shuffled, np.concatenate(batches)) == whole


@lawful
@given(few_values, few_values)
def test_the_threshold_gives_the_accuracies_it_is_reported_with(id_scores, ood_scores):
    m = ood_metrics(id_scores, ood_scores)
    flagged_id, flagged_ood = id_scores >= m.threshold, ood_scores >= m.threshold
    right = np.sum(~flagged_id) + np.sum(flagged_ood)
    assert m.detection_accuracy == right / (m.num_id + m.num_ood)
    balanced = (flagged_ood.mean() + 1 - flagged_id.mean()) / 2
    assert m.balanced_detection_accuracy == pytest.approx(balanced, abs=1e-15)
    assert m.balanced_detection_accuracy >= 0.5


@lawful
@given(few_values, few_values)
def test_the_interval_holds_the_estimate_and_is_never_a_point(id_scores, ood_scores):
    m = ood_metrics(id_scores, ood_scores)
    assert 0 <= m.auroc_low <= m.auroc <= m.auroc_high <= 1
    assert m.auroc_low < m.auroc_high


def test_a_wider_level_gives_a_wider_interval():
    scores = normal(100, 100)
    narrow, wide = ood_metrics(*scores, level=0.5), ood_metrics(*scores, level=0.99)
    assert wide.auroc_low < narrow.auroc_low < narrow.auroc < narrow.auroc_high < wide.auroc_high


@pytest.mark.parametrize(
    ("num_id", "num_ood", "auroc"), [(100, 100, 0.85), (400, 60, 0.75), (500, 500, 0.95)]
)
def test_the_interval_covers_the_truth_in_95_percent_of_binormal_draws(num_id, num_ood, auroc):
    covered = coverage(num_id, num_ood, shift=2**0.5 * INVERSE_NORMAL[auroc], truth=auroc)
    assert covered == pytest.approx(0.95, abs=0.015)


def test_the_interval_is_cautious_where_errors_are_few():
    # 1 % of OOD looks like ID, the rest is far away: the plain DeLong interval covers 75 %.
    covered = coverage(100, 100, shift=2**0.5 * INVERSE_NORMAL[0.999], truth=0.99401, alike=0.01)
    assert covered > 0.95


INVERSE_NORMAL = {0.75: 0.6744898, 0.85: 1.0364334, 0.95: 1.6448536, 0.999: 3.0902323}


def coverage(num_id, num_ood, shift, truth, alike=0.0, num_draws=2000):
    rng = np.random.default_rng(2024)
    covered = 0
    for _ in range(num_draws):
        ood = rng.normal(shift, 1, num_ood)
        ood[rng.random(num_ood) < alike] -= shift
        m = ood_metrics(rng.normal(0, 1, num_id), ood)
        covered += m.auroc_low <= truth <= m.auroc_high
    return covered / num_draws


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8])
def test_dtypes_give_the_same_answer(dtype):
    id_scores, ood_scores = np.array([0, 1, 2, 2]), np.array([2, 3, 1, 3])
    expected = ood_metrics(id_scores.astype(float), ood_scores.astype(float))
    assert ood_metrics(id_scores.astype(dtype), ood_scores.astype(dtype)) == expected


def test_float32_scores_that_differ_by_one_step_are_not_tied():
    one = np.float32(1.0)
    assert ood_metrics([one], np.array([np.nextafter(one, np.float32(2))])).auroc == 1.0


def test_torch_tensors_and_lists_are_accepted():
    expected = ood_metrics(np.array([0.0, 1.0]), np.array([0.5, 2.0]))
    assert ood_metrics(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0])) == expected
    assert ood_metrics([0.0, 1.0], (0.5, 2.0)) == expected


def test_large_scores_are_neither_clipped_nor_squashed():
    # A float32 sigmoid would tie all of these at 1.
    assert ood_metrics([20.0, 30.0, 40.0], [50.0, 60.0]).auroc == 1.0


def test_ranks_give_the_same_metrics_as_scores():
    id_scores, ood_scores = CASES["tied"]
    ranks = rankdata(np.concatenate([id_scores, ood_scores]), method="dense")
    a, b = asdict(ood_metrics(id_scores, ood_scores)), asdict(ood_metrics(ranks[:400], ranks[400:]))
    del a["threshold"], b["threshold"]
    assert a == b


def test_the_result_is_frozen():
    with pytest.raises(FrozenInstanceError):
        ood_metrics([0.0], [1.0]).auroc = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("id_scores", "ood_scores", "message"),
    [
        ([], [1.0], "id_scores is empty"),
        ([1.0], [], "ood_scores is empty"),
        ([1.0, float("nan"), float("nan")], [1.0], "id_scores holds 2 NaN of 3"),
        ([1.0], [float("nan")], "ood_scores holds 1 NaN of 1"),
        ([[1.0], [2.0]], [1.0], r"id_scores must be one number per sample.*got shape \(2, 1\)"),
        (1.0, [1.0], r"got shape \(\)"),
        (["a"], [1.0], "id_scores must be real numbers"),
        ([1j], [1.0], "id_scores must be real numbers"),
        ([[1.0], [1.0, 2.0]], [1.0], "id_scores must be numbers numpy can read"),
        ([2**53 + 1, 2**53], [1.0], "integers of 2.*53 or more"),
        (
            torch.ones(2, requires_grad=True),
            [1.0],
            r"detach\(\).float\(\).cpu\(\).numpy\(\)",
        ),
        (torch.ones(2, dtype=torch.bfloat16), [1.0], "id_scores must be numbers numpy can read"),
    ],
)
def test_what_cannot_be_ranked_is_a_clear_error(id_scores, ood_scores, message):
    with pytest.raises(UsageError, match=message):
        ood_metrics(id_scores, ood_scores)


@pytest.mark.parametrize("level", [0.0, 1.0, 95, float("nan")])
def test_a_level_outside_zero_to_one_is_an_error(level):
    with pytest.raises(UsageError, match="level must be a number, above 0 and below 1"):
        ood_metrics([0.0], [1.0], level=level)
