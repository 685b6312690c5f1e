"""Selective classification: the curve against slow loops, the bound against exact binomials."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from goen.functional.selective import (
    CANDIDATES,
    accuracy_at,
    aurc,
    error_level,
    errors_by_count,
    least_aurc,
    required_images,
    select,
    selections,
)


def slow_aurc(scores: list[float], wrong: list[bool]) -> float:
    """The mean over many random orders of ties, each summed image by image."""
    rng, found = np.random.default_rng(0), []
    for _ in range(4000):
        order = sorted(range(len(scores)), key=lambda i: (scores[i], rng.random()))
        errors, risks = 0, []
        for count, image in enumerate(order, 1):
            errors += wrong[image]
            risks.append(errors / count)
        found.append(sum(risks) / len(risks))
    return sum(found) / len(found)


def test_the_area_is_the_mean_over_orders_of_ties() -> None:
    rng = np.random.default_rng(1)
    scores, wrong = rng.integers(0, 4, 30).astype(float), rng.random(30) < 0.3
    found = aurc(errors_by_count(scores, wrong))
    assert found == pytest.approx(slow_aurc(scores.tolist(), wrong.tolist()), abs=0.003)
    order = rng.permutation(30)
    assert aurc(errors_by_count(scores[order], wrong[order])) == pytest.approx(found, abs=1e-12)


def test_without_ties_the_area_is_exact() -> None:
    scores, wrong = np.array([5.0, 1.0, 4.0, 2.0, 3.0]), np.array([1, 0, 1, 1, 0], bool)
    # In order: right, wrong, right, wrong, wrong.
    exact = Fraction(0) + Fraction(1, 2) + Fraction(1, 3) + Fraction(2, 4) + Fraction(3, 5)
    assert aurc(errors_by_count(scores, wrong)) == pytest.approx(float(exact / 5), abs=1e-15)
    assert aurc(errors_by_count(-scores, wrong)) > 0.5


def test_the_least_area_is_that_of_the_best_order() -> None:
    for count, num_wrong in ((1, 0), (1, 1), (7, 3), (40, 40), (50, 1)):
        wrong = np.arange(count) >= count - num_wrong
        best = aurc(errors_by_count(np.arange(float(count)), wrong))
        assert least_aurc(count, num_wrong) == pytest.approx(best, abs=1e-14)


def test_accuracy_at_a_coverage_counts_at_least_that_share() -> None:
    errors = errors_by_count(np.arange(10.0), np.arange(10) >= 8)
    assert accuracy_at(errors, 0.8) == 1.0
    assert accuracy_at(errors, 0.81) == pytest.approx(8 / 9)
    assert accuracy_at(errors, 1.0) == 0.8
    assert accuracy_at(errors, 0.001) == 1.0
    tied = errors_by_count(np.zeros(10), np.arange(10) >= 8)
    assert accuracy_at(tied, 0.5) == pytest.approx(0.8)


# -- the bound -----------------------------------------------------------------------------------


def test_each_bound_is_clopper_and_pearsons_at_a_twentieth_of_the_level() -> None:
    rng = np.random.default_rng(2)
    scores, wrong = rng.normal(size=537), rng.random(537) < 0.1
    found = selections(scores, wrong, 0.9)
    assert len(found) == CANDIDATES
    for step, one in enumerate(found, 1):
        count = 537 * step // CANDIDATES
        below = scores < np.sort(scores)[count] if count < 537 else np.full(537, True)
        assert (one.count, one.errors) == (below.sum(), wrong[below].sum()) == (count, one.errors)
        # One-sided at 0.1 / 20: two-sided at twice that.
        interval = binomtest(one.errors, one.count).proportion_ci(1 - 2 * 0.1 / 20)
        assert one.bound == pytest.approx(interval.high, rel=1e-9)
        assert binom.cdf(one.errors, one.count, one.bound) == pytest.approx(0.005, rel=1e-6)


def test_the_selection_is_the_largest_whose_bound_is_low_enough() -> None:
    scores = np.arange(2000.0)
    wrong = (scores % 400 == 399) | (scores >= 1700)
    found = select(scores, wrong, 0.02, 0.95)
    assert found is not None
    assert (found.limit, found.count, found.errors) == (1700.0, 1700, 4)
    assert found.bound <= 0.02
    refused = [one for one in selections(scores, wrong, 0.95) if one.count > 1700]
    assert len(refused) == 3
    assert all(one.bound > 0.02 for one in refused)
    everything = select(scores, np.zeros(2000, bool), 0.02, 0.95)
    assert everything is not None
    assert (everything.limit, everything.count) == (math.inf, 2000)


def test_ties_are_accepted_or_refused_together() -> None:
    scores = np.repeat([0.0, 1.0], 500)
    found = select(scores, scores == 1.0, 0.05, 0.95)
    assert found is not None
    assert (found.limit, found.count, found.errors) == (1.0, 500, 0)
    assert select(np.zeros(1000), np.arange(1000) < 500, 0.05, 0.95) is None
    assert {one.count for one in selections(np.zeros(100), np.zeros(100, bool), 0.9)} == {0, 100}


@pytest.mark.parametrize("rate", [0.3, 0.1, 0.02])
def test_so_many_images_without_an_error_are_enough_and_one_less_is_not(rate: float) -> None:
    needed = required_images(rate, 0.95)
    assert (1 - rate) ** needed <= error_level(0.95) < (1 - rate) ** (needed - 1)
    for count, enough in ((needed, True), (needed - 1, False)):
        found = select(np.arange(float(count)), np.zeros(count, bool), rate, 0.95)
        assert (found is not None) == enough


def test_without_images_nothing_is_selected() -> None:
    assert select(np.zeros(0), np.zeros(0, bool), 0.5, 0.5) is None


@pytest.mark.parametrize("levels", [0, 6], ids=["no ties", "ties"])
def test_the_risk_exceeds_the_rate_no_more_often_than_promised(levels: int) -> None:
    """A population whose risk is the rate at every limit: each pass is a violation."""
    rng, violations, repetitions = np.random.default_rng(3), 0, 2000
    for _ in range(repetitions):
        scores = rng.random(300)
        if levels:
            scores = np.floor(scores * levels)
        violations += select(scores, rng.random(300) < 0.1001, 0.1, 0.8) is not None
    # At most 0.2; the candidates overlap, so that it is less than the sum.
    assert violations / repetitions <= 0.2
    assert violations > 0
