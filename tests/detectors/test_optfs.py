from itertools import pairwise

import numpy as np
import pytest
import torch

from goen.detectors import OptFS
from goen.errors import FitError, UsageError
from tests.detectors.linear import labels, of, some, weights


@pytest.mark.parametrize("bins", [1, 10, 100])
def test_theta_and_score_are_those_of_a_slow_loop(bins: int) -> None:
    train, other = some(60), some(30, 1)
    optfs = OptFS(bins=bins).fit(train, labels(60))
    weight = weights()[0].numpy()
    z = train.features["z"].numpy()
    low, high = np.percentile(z, [0.1, 99.9])
    edges = np.linspace(low, high, bins + 1)

    def contributions(row: np.ndarray, predicted: int) -> np.ndarray:
        """Of each bin."""
        parts = weight[predicted] * row
        return np.array([parts[(row > a) & (row <= b)].sum() for a, b in pairwise(edges)])

    predictions = train.logits.argmax(1).tolist()
    theta = np.mean([contributions(*pair) for pair in zip(z, predictions, strict=True)], axis=0)
    theta /= np.linalg.norm(theta)
    assert np.allclose(optfs.theta_.numpy(), theta, rtol=1e-9)
    rows = zip(other.features["z"].numpy(), other.logits.argmax(1).tolist(), strict=True)
    expected = [-theta @ contributions(*pair) for pair in rows]
    assert np.allclose(optfs.score(other).numpy(), expected, rtol=1e-9)


def test_no_other_shaping_has_a_larger_mean_logit_on_the_training_rows() -> None:
    train = some(60)
    optfs = OptFS(bins=10).fit(train, labels(60))
    best = optfs.score(train).mean()
    generator = torch.manual_seed(0)
    for _ in range(20):
        other = torch.randn(10, dtype=torch.float64, generator=generator)
        optfs.theta_ = other / other.norm()
        assert optfs.score(train).mean() > best


def test_by_hand() -> None:
    # Activations 0 to 1000 in two bins of about 500; weights 1 make both contribute their sums.
    z = torch.arange(1001.0)[:, None]
    weight = torch.ones(1, 1)
    optfs = OptFS(bins=2).fit(of(z, weight), torch.zeros(1001).long())
    assert optfs.edges_.tolist() == pytest.approx([1, 500, 999])
    small, large = sum(range(2, 501)), sum(range(501, 1000))
    length = np.hypot(small, large)
    scores = optfs.score(of(torch.tensor([[1.0], [2.0], [800.0], [1000.0]]), weight))
    assert scores.tolist() == pytest.approx([0, -2 * small / length, -800 * large / length, 0])


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match="bins must be an integer, at least 1"):
        OptFS(bins=0)
    with pytest.raises(FitError, match="Nearly all activations of the 4 training rows are 1"):
        OptFS().fit(of(torch.ones(4, 2), torch.ones(1, 2)), torch.zeros(4).long())
    with pytest.raises(FitError, match="all weights are 0"):
        OptFS().fit(of(torch.rand(4, 2), torch.zeros(1, 2)), torch.zeros(4).long())
