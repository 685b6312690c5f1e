import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from goen.detectors import VRA, ReAct
from goen.errors import UsageError
from tests.detectors.linear import labels, of, some, weights


@pytest.mark.parametrize(("low", "high"), [(60, 90), (0, 100), (70, 99.5)])
def test_small_entries_are_zeroed_and_large_ones_clipped(low: float, high: float) -> None:
    train, other = some(60), some(30, 1)
    vra = VRA(low=low, high=high).fit(train, labels(60))
    t1, t2 = np.percentile(train.features["z"].numpy(), [low, high])
    weight, bias = (part.numpy() for part in weights())
    expected = []
    for row in other.features["z"].numpy():
        seen = [0.0 if x < t1 else t2 if x > t2 else x for x in row]
        expected.append(-logsumexp(weight @ np.array(seen) + bias))
    assert np.allclose(vra.score(other).numpy(), expected, rtol=1e-10)


def test_by_hand() -> None:
    # Activations 0 to 10: (2, 6, 12) is seen as (0, 6, 9), where both peers would see (3, 6, 9).
    weight = torch.ones(1, 3)
    train = of(torch.arange(11.0)[:, None].repeat(1, 3), weight)
    vra = VRA(low=30, high=90).fit(train, torch.zeros(11).long())
    assert vra.thresholds_.tolist() == [3, 9]
    assert vra.score(of(torch.tensor([[2.0, 6.0, 12.0]]), weight)).tolist() == [-15]


def test_zeroing_nothing_it_is_react() -> None:
    vra, react = (d.fit(some(60), labels(60)) for d in (VRA(low=0), ReAct()))
    assert torch.allclose(vra.score(some(9, 1)), react.score(some(9, 1)))


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="low lies below high, got low=95 and high=90"):
        VRA(low=95)
    with pytest.raises(UsageError, match="high must be a number, above 0 and at most 100"):
        VRA(high=0)
