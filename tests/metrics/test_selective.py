"""`selective_metrics`: hand-worked cases, scikit-learn, and invalid arguments."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, roc_auc_score

from goen.errors import UsageError
from goen.metrics import ood_metrics, risk_coverage_curve, selective_metrics

lawful = settings(deadline=None, derandomize=True)


def draw(count=400, seed=0):
    rng = np.random.default_rng(seed)
    wrong = rng.random(count) < 0.2
    return rng.normal(1.0 * wrong), wrong


def test_a_case_worked_by_hand():
    m = selective_metrics([3, 1, 2, 5, 4], [False, False, True, True, False])
    # In order: right, wrong, right, right, wrong.
    assert m.aurc == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 4 + 2 / 5) / 5, abs=1e-15)
    assert m.e_aurc == pytest.approx(m.aurc - (1 / 4 + 2 / 5) / 5, abs=1e-15)
    assert m.error_auroc == 4 / 6
    assert m.accuracy_at_50 == pytest.approx(2 / 3)
    assert m.accuracy_at_80 == 0.75
    assert m.accuracy_at_90 == m.accuracy_at_95 == 0.6
    assert (m.num_images, m.num_wrong, m.level) == (5, 2, 0.95)


def test_the_curve_and_its_area_match_a_loop():
    scores, wrong = draw()
    coverage, risk = risk_coverage_curve(scores, wrong)
    order = np.argsort(scores)
    for count in (1, 7, 200, 400):
        assert coverage[count - 1] == count / 400
        assert risk[count - 1] == pytest.approx(wrong[order[:count]].mean(), abs=1e-12)
    m = selective_metrics(scores, wrong)
    assert m.aurc == pytest.approx(risk.mean(), abs=1e-12)
    # The trapezoid rule differs by half of the end steps.
    ends = (risk[0] + risk[-1]) / 2 / 400
    assert auc(coverage, risk) == pytest.approx(m.aurc - ends, abs=1e-12)


def test_the_auroc_of_errors_matches_sklearn_and_its_interval_that_of_ood_metrics():
    scores, wrong = draw(seed=4)
    m = selective_metrics(scores.round(1), wrong, level=0.9)
    assert m.error_auroc == pytest.approx(roc_auc_score(wrong, scores.round(1)), abs=1e-12)
    other = ood_metrics(scores.round(1)[~wrong], scores.round(1)[wrong], level=0.9)
    assert (m.error_auroc_low, m.error_auroc_high) == (other.auroc_low, other.auroc_high)


def test_the_best_order_has_no_excess_and_the_worst_the_most():
    wrong = np.arange(50) >= 45
    assert selective_metrics(np.arange(50), wrong).e_aurc == pytest.approx(0, abs=1e-15)
    worst = selective_metrics(-np.arange(50), wrong)
    assert worst.error_auroc == 0.0
    assert worst.e_aurc > selective_metrics(np.zeros(50), wrong).e_aurc > 0
    # Without an order the risk is the same at every coverage.
    assert selective_metrics(np.zeros(50), wrong).aurc == pytest.approx(0.1)


@lawful
@given(st.integers(0, 1000))
def test_only_the_order_of_the_scores_counts(seed):
    scores, wrong = draw(60, seed)
    wrong[:2] = True, False
    scores = scores.round(1)
    m = selective_metrics(scores, wrong)
    assert selective_metrics(8 * scores, wrong) == m
    order = np.random.default_rng(seed).permutation(60)
    again = selective_metrics(scores[order], wrong[order])
    assert again.aurc == pytest.approx(m.aurc, abs=1e-12)
    assert 0 <= m.e_aurc <= m.aurc <= 1


@pytest.mark.parametrize(
    ("scores", "wrong", "message"),
    [
        ([1.0, 2.0], [True], "one yes or no per sample"),
        ([1.0, np.nan], [True, False], "1 NaN"),
        ([1.0, 2.0], [False, False], "All 2 answers are right"),
        ([1.0, 2.0], [1, 1], "All 2 answers are wrong"),
    ],
)
def test_invalid_arguments_say_what_was_expected(scores, wrong, message):
    with pytest.raises(UsageError, match=message):
        selective_metrics(scores, wrong)


def test_a_curve_needs_no_errors():
    assert risk_coverage_curve([1.0, 2.0], [False, False])[1].tolist() == [0, 0]
