"""Bins, calibration error and Brier score, against loops and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from goen.functional import calibration

lawful = settings(deadline=None, derandomize=True)


def error_by_loop(predicted, happened, edges):
    total = 0.0
    for b in range(len(edges) - 1):
        inside = [
            i
            for i, p in enumerate(predicted)
            if (p > edges[b] or b == 0) and (p <= edges[b + 1] or b == len(edges) - 2)
        ]
        if inside:
            gap = np.mean([predicted[i] for i in inside]) - np.mean([happened[i] for i in inside])
            total += len(inside) / len(predicted) * abs(gap)
    return total


@pytest.mark.parametrize("num_bins", [1, 2, 10, 15])
@pytest.mark.parametrize("size", [1, 7, 500])
def test_equal_width_error_matches_a_loop(num_bins, size):
    rng = np.random.default_rng(size)
    p, y = rng.random(size), (rng.random(size) < 0.4).astype(float)
    edges = calibration.equal_width_edges(num_bins)
    ours = calibration.calibration_error(p, y, edges)
    assert ours == pytest.approx(error_by_loop(p, y, edges), abs=1e-12)


def test_bins_match_sklearns_reliability_curve():
    rng = np.random.default_rng(0)
    p = rng.random(1000).round(2)  # many on the edges of ten bins
    y = (rng.random(1000) < p).astype(float)
    counts, said, was = calibration.bin_sums(p, y, np.linspace(0, 1, 11))
    observed, predicted = calibration_curve(y, p, n_bins=10)
    assert was / counts == pytest.approx(observed, abs=1e-12)
    assert said / counts == pytest.approx(predicted, abs=1e-12)


def test_an_edge_belongs_to_the_bin_below_and_zero_to_the_first():
    p = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.0 + 1e-7])
    counts, _, _ = calibration.bin_sums(p, p, calibration.equal_width_edges(4))
    assert counts.tolist() == [2, 1, 1, 2]


@lawful
@given(st.lists(st.integers(0, 6).map(lambda k: k / 8), min_size=1, max_size=40), st.integers(1, 9))
def test_equal_mass_bins_hold_about_as_many_each_and_never_part_equal_values(values, num_bins):
    values = np.array(values)
    edges = calibration.equal_mass_edges(values, num_bins)
    assert np.all(np.diff(edges) >= 0)
    assert edges[-1] == values.max()
    for b, edge in enumerate(edges[1:], start=1):
        # The smallest value that has at least b / B of the sample at or below it.
        assert np.sum(values <= edge) * num_bins >= b * values.size
        assert np.sum(values < edge) * num_bins < b * values.size


def test_equal_mass_bins_of_distinct_values_are_equal():
    values = np.random.default_rng(0).permutation(60) / 64
    counts, _, _ = calibration.bin_sums(values, values, calibration.equal_mass_edges(values, 15))
    assert counts.tolist() == [4] * 15


def test_brier_matches_sklearn():
    rng = np.random.default_rng(0)
    p, labels = rng.dirichlet(np.ones(5), 200), rng.integers(0, 5, 200)
    expected = brier_score_loss(labels, p, labels=range(5), scale_by_half=False)
    assert calibration.brier(p, labels) == pytest.approx(expected, abs=1e-12)


def test_brier_leaves_its_input_alone():
    p = np.array([[0.5, 0.5]])
    calibration.brier(p, np.array([1]))
    assert p.tolist() == [[0.5, 0.5]]


def test_an_edge_belongs_to_the_bin_below_it_whatever_their_number() -> None:
    for num_bins in range(1, 101):
        values = np.array([b / num_bins for b in range(1, num_bins + 1)])
        counts, _, _ = calibration.bin_sums(values, values, calibration.equal_width_edges(num_bins))
        assert counts.tolist() == [1] * num_bins, num_bins
