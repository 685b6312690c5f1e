import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from goen.detectors import DICE, Energy
from goen.errors import GoenWarning, UsageError
from tests.detectors.linear import labels, of, some, weights


@pytest.mark.parametrize("percentile", [10, 50, 90])
def test_it_is_the_energy_of_a_masked_classifier(percentile: float) -> None:
    train, other = some(60), some(30, 1)
    dice = DICE(percentile=percentile).fit(train, labels(60))
    weight, bias = (part.numpy() for part in weights())
    contribution = weight * train.features["z"].numpy().mean(0)
    threshold = np.percentile(contribution, percentile)  # over the whole matrix
    expected = []
    for row in other.features["z"].numpy():
        logits = [
            sum(
                w * x
                for w, x, v in zip(weight[c], row, contribution[c], strict=True)
                if v > threshold
            )
            for c in range(3)
        ]
        expected.append(-logsumexp(np.array(logits) + bias))
    assert np.allclose(dice.score(other).numpy(), expected, rtol=1e-10)


def test_by_hand() -> None:
    # Contributions (2, 4) and (6, -8), of which those above the median, 3, are kept.
    weight = torch.tensor([[1.0, 4.0], [3.0, -8.0]])
    train = of(torch.tensor([[1.0, 0.5], [3.0, 1.5]]), weight)
    dice = DICE(percentile=50).fit(train, torch.tensor([0, 1]))
    assert dice.weight_.tolist() == [[0, 4], [3, 0]]
    score = dice.score(of(torch.tensor([[100.0, 1.0]]), weight))
    assert score.item() == pytest.approx(-300)


def test_the_default_leaves_the_predictions_of_training_images() -> None:
    # Two of twenty weights decide, and the others are small: nine tenths may go.
    z = torch.ones(40, 10)
    z[torch.arange(40), torch.arange(40) % 2] = 5
    weight = 0.01 * torch.rand(2, 10, generator=torch.manual_seed(0))
    weight[0, 0] = weight[1, 1] = 1
    dice = DICE().fit(of(z, weight), torch.arange(40) % 2)
    assert torch.nonzero(dice.weight_).tolist() == [[0, 0], [1, 1]]
    assert (dice.score(of(z, weight)) >= Energy().score(of(z, weight))).all()


def test_percentiles_out_of_range_and_negative_features() -> None:
    with pytest.raises(UsageError, match="percentile must be a number, at least 0 and below 100"):
        DICE(percentile=100)
    with pytest.warns(GoenWarning, match="DICE is made for features behind a ReLU"):
        DICE().fit(of(some(9).features["z"] - 1, *weights()), labels(9))
