import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from goen.detectors import LTS, SCALE
from goen.errors import GoenWarning, UsageError
from goen.outputs import Outputs
from tests.detectors.linear import labels, of, some, weights


def ratio(row: np.ndarray, percentile: float) -> float:
    row = np.maximum(row, 0)
    largest = np.sort(row)[::-1][: max(len(row) - round(len(row) * percentile / 100), 1)]
    return float(row.sum() / largest.sum())


@pytest.mark.parametrize("percentile", [0, 50, 85, 95])
def test_they_are_energies_scaled_by_the_ratio_of_sums(percentile: float) -> None:
    train, other = some(60), some(30, 1)
    scale = SCALE(percentile=percentile).fit(train, labels(60))
    lts = LTS(percentile=percentile).fit(train, labels(60))
    weight, bias = (part.numpy() for part in weights())
    expected = [
        (
            -logsumexp(weight @ row * np.exp(ratio(row, percentile)) + bias),
            -logsumexp((weight @ row + bias) * ratio(row, percentile) ** 2),
        )
        for row in other.features["z"].numpy()
    ]
    found = np.stack([scale.score(other).numpy(), lts.score(other).numpy()], axis=1)
    assert np.allclose(found, expected, rtol=1e-10)


def test_by_hand() -> None:
    # The largest half of (6, 2, 1, 1) sums to 8, all to 10; the logit is 10, the bias 1.
    outputs = of(torch.tensor([[6.0, 2.0, 1.0, 1.0]]), torch.ones(1, 4), torch.ones(1))
    label = torch.tensor([0])
    scale = SCALE(percentile=50).fit(outputs, label).score(outputs)
    assert scale.item() == pytest.approx(-10 * np.exp(1.25) - 1)
    lts = LTS(percentile=50).fit(outputs, label).score(outputs)
    assert lts.item() == pytest.approx(-11 * 1.25**2)


def test_a_factor_that_float32_cannot_hold() -> None:
    even = of(torch.ones(1, 200), torch.full((1, 200), 0.01), torch.zeros(1))  # the ratio is 100
    scale = SCALE(percentile=99).fit(even, torch.tensor([0]))
    assert scale.score(even).item() == pytest.approx(-2 * np.exp(100), rel=1e-5)


def test_a_row_without_positive_entries_is_scaled_by_one() -> None:
    train = Outputs(torch.full((1, 1), 3.0), {"z": torch.ones(1, 4)})
    zero = Outputs(torch.full((1, 1), 3.0), {"z": torch.zeros(1, 4)})
    assert LTS().fit(train, torch.tensor([0])).score(zero).item() == -3


@pytest.mark.parametrize("make", [SCALE, LTS])
def test_percentiles_out_of_range_and_negative_features(make: type) -> None:
    with pytest.raises(UsageError, match="percentile must be a number, at least 0 and below 100"):
        make(percentile=100)
    negative = of(some(9).features["z"] - 1, *weights())
    with pytest.warns(GoenWarning, match=f"{make.__name__} is made for features behind a ReLU"):
        make().fit(negative, labels(9))
