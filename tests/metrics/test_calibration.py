"""`ood_calibration` and `reliability_curve`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from goen.errors import UsageError
from goen.metrics import ReliabilityBin, ood_calibration, reliability_curve

lawful = settings(deadline=None, derandomize=True)


def test_a_case_worked_by_hand():
    c = ood_calibration([0.1, 0.3, 0.7, 0.9, 0.9], [False, True, True, True, False], num_bins=2)
    # Lower bin: mean 0.2, one of two; upper: mean 2.5 / 3, two of three.
    assert c.ece == pytest.approx((2 * 0.3 + 3 * (2.5 / 3 - 2 / 3)) / 5, abs=1e-12)
    assert c.brier == pytest.approx((0.01 + 0.49 + 0.09 + 0.01 + 0.81) / 5, abs=1e-12)
    assert c.prevalence == 0.6
    assert c.num_samples == 5
    lower, upper = c.curve
    assert (lower.low, lower.high, lower.count, lower.observed) == (0.0, 0.5, 2, 0.5)
    assert upper.mean_predicted == pytest.approx(2.5 / 3, abs=1e-12)


@pytest.mark.parametrize("num_bins", [1, 10, 15])
@pytest.mark.parametrize("decimals", [1, 15], ids=["tied", "random"])
def test_brier_and_curve_match_sklearn(num_bins, decimals):
    rng = np.random.default_rng(0)
    p = rng.random(300).round(decimals)
    is_ood = rng.random(300) < p**2
    c = ood_calibration(p, is_ood, num_bins=num_bins)
    assert c.brier == pytest.approx(brier_score_loss(is_ood, p), abs=1e-12)
    observed, predicted = calibration_curve(is_ood, p, n_bins=num_bins)
    assert [b.observed for b in c.curve] == pytest.approx(observed, abs=1e-12)
    assert [b.mean_predicted for b in c.curve] == pytest.approx(predicted, abs=1e-12)
    gaps = [b.count / 300 * abs(b.mean_predicted - b.observed) for b in c.curve]
    assert c.ece == pytest.approx(sum(gaps), abs=1e-12)


def test_the_papers_squeezed_targets_are_seen_as_miscalibrated():
    # A head trained to 0.05 and 0.95 that is always right is off by 0.05 everywhere.
    c = ood_calibration([0.05] * 50 + [0.95] * 50, [0] * 50 + [1] * 50)
    assert c.ece == pytest.approx(0.05, abs=1e-12)
    assert c.brier == pytest.approx(0.0025, abs=1e-12)


@lawful
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_every_sample_falls_into_the_bin_that_holds_it(pairs):
    p, y = zip(*pairs, strict=True)
    curve = reliability_curve(p, y)
    assert sum(b.count for b in curve) == len(pairs)
    for b in curve:
        inside = [v for v in p if (b.low < v <= b.high) or (v == 0.0 == b.low)]
        assert b.count == len(inside)
        assert b.mean_predicted == pytest.approx(np.mean(inside), abs=1e-12)


def test_empty_bins_are_left_out():
    assert reliability_curve([0.9], [1], num_bins=10) == (
        ReliabilityBin(low=0.8, high=0.9, count=1, mean_predicted=0.9, observed=1.0),
    )


@pytest.mark.parametrize(
    ("probability", "is_ood", "message"),
    [
        ([], [], "probability is empty"),
        ([1.2, -0.1], [0, 1], r"\[0, 1\], got -0.1..1.2. A score is not a probability"),
        ([float("nan")], [0], "1 NaN of 1"),
        ([0.5], [2], "True and False"),
        ([0.5], [-1], "True and False"),
        ([0.5, 0.5], [1], r"is_ood must be one yes or no per sample, shape \(2,\)"),
    ],
)
def test_what_cannot_be_meant_is_a_clear_error(probability, is_ood, message):
    with pytest.raises(UsageError, match=message):
        ood_calibration(probability, is_ood)
