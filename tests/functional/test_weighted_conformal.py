import numpy as np
import pytest

from goen.functional.conformal import p_values
from goen.functional.weighted_conformal import (
    DensityRatio,
    class_weights,
    effective_size,
    weighted_p_values,
)


def slowly(score: float, weight: float, held_out: np.ndarray, weights: np.ndarray) -> float:
    above = sum(w for s, w in zip(held_out, weights, strict=True) if s >= score)
    return float((above + weight) / (sum(weights) + weight))


@pytest.mark.parametrize("digits", [0, 9], ids=["ties", "no ties"])
def test_weighted_p_values_match_a_loop(digits: int) -> None:
    rng = np.random.default_rng(0)
    held_out, scores = rng.normal(size=50).round(digits), rng.normal(size=30).round(digits)
    weights, own = rng.exponential(size=50), rng.exponential(size=30)
    found = weighted_p_values(scores, own, held_out, weights)
    expected = [slowly(s, w, held_out, weights) for s, w in zip(scores, own, strict=True)]
    assert found == pytest.approx(expected)
    # Equal weights, whatever they are, are none.
    equal = weighted_p_values(scores, np.full(30, 3.0), held_out, np.full(50, 3.0))
    assert equal == pytest.approx(p_values(scores, held_out))


def test_weighted_p_values_by_hand() -> None:
    held_out, weights = np.array([3.0, 1.0, 2.0]), np.array([5.0, 1.0, 2.0])
    found = weighted_p_values(
        np.array([2.0, 3.5, 0.0]), np.array([2.0, 2.0, 1.0]), held_out, weights
    )
    assert found.tolist() == pytest.approx([9 / 10, 2 / 10, 1.0])


def test_effective_size_by_hand() -> None:
    assert effective_size(np.ones(7)) == pytest.approx(7)
    assert effective_size(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
    assert effective_size(np.zeros(3)) == 0


def test_class_weights_by_hand() -> None:
    weights = class_weights(np.array([0, 0, 0, 1]), np.array([0.25, 0.75, 0.0]))
    assert weights.tolist() == pytest.approx([1 / 3, 3, 0])


def drawn(rng: np.random.Generator, count: int, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """A property, and scores that rise with it; the same for every mean of the property."""
    x = rng.normal(mean, 1, count)
    return x, x + rng.normal(size=count)


def test_with_the_true_weights_the_rate_holds_and_without_them_it_does_not() -> None:
    """recipes/declared_shift.py does the same with more repetitions, and with estimated weights."""
    rng = np.random.default_rng(1)
    rate, repetitions, new, shift = 0.1, 400, 25, 0.8
    weighted, plain = [], []
    for _ in range(repetitions):
        (x, held_out), (y, scores) = drawn(rng, 150, 0), drawn(rng, new, shift)
        weights, own = np.exp(shift * x), np.exp(shift * y)
        weighted.append(np.mean(weighted_p_values(scores, own, held_out, weights) <= rate))
        plain.append(np.mean(p_values(scores, held_out) <= rate))
    error = np.std(weighted) / np.sqrt(repetitions)
    assert 0.06 < np.mean(weighted) <= rate + 3 * error
    assert np.mean(plain) > 0.2


def test_the_ratio_of_two_gaussians_is_found() -> None:
    rng = np.random.default_rng(2)
    held_out, sample = rng.normal(size=(4000, 2)), rng.normal((0.7, 0), 1, (4000, 2))
    ratio = DensityRatio.fit(held_out, sample)
    points = rng.normal(size=(500, 2))
    truth = 0.7 * points[:, 0] - 0.7**2 / 2
    found = np.log(ratio.weights(points))
    assert np.abs(found - truth).mean() < 0.1
    assert np.log(ratio.held_out) == pytest.approx(0.7 * held_out[:, 0] - 0.245, abs=0.6)
    assert ratio.held_out.mean() == pytest.approx(1, abs=0.1)  # on the scale of dQ/dP


def test_no_image_weighs_more_than_twenty() -> None:
    rng = np.random.default_rng(3)
    ratio = DensityRatio.fit(rng.normal(size=(300, 1)), rng.normal(2, 1, (300, 1)))
    found = ratio.weights(np.linspace(-9, 9, 50)[:, None])
    assert found.max() == pytest.approx(20)  # the ratio at 4 is 403
    assert ratio.held_out.max() <= 20


def test_a_held_out_image_does_not_weigh_in_its_own_fit() -> None:
    rng = np.random.default_rng(4)
    held_out, sample = rng.normal(size=(100, 1)), rng.normal(size=(100, 1))
    before = DensityRatio.fit(held_out, sample)
    scale = [held_out.mean(axis=0), held_out.std(axis=0)]
    folds = np.random.default_rng(0)
    folds.permutation(100)
    first = np.flatnonzero(folds.permutation(100) % 5 == 0)
    # Its weight follows from the coefficients of the one fit that left it out.
    rows = (held_out[first] - scale[0]) / scale[1]
    own = np.concatenate([rows, rows**2], axis=1) @ before.slopes[0] + before.intercepts[0]
    assert before.held_out[first] == pytest.approx(np.exp(own))
    assert not np.allclose(before.slopes[0], before.slopes[1])
