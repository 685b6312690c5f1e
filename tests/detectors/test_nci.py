import numpy as np
import pytest
import torch

from goen.detectors import NCI
from goen.errors import UsageError
from tests.detectors.linear import labels, of, some, weights


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_it_is_the_component_along_the_weights_of_the_predicted_class(alpha: float) -> None:
    train, other = some(60), some(30, 1)
    nci = NCI(alpha=alpha).fit(train, labels(60))
    mean, weight = train.features["z"].numpy().mean(0), weights()[0].numpy()
    expected = []
    for row, at in zip(other.features["z"].numpy(), other.logits.argmax(1).tolist(), strict=True):
        along = weight[at] @ (row - mean) / np.linalg.norm(row - mean)
        expected.append(-along - alpha * np.abs(row).sum())
    assert np.allclose(nci.score(other).numpy(), expected, rtol=1e-10)


def test_by_hand() -> None:
    # The mean is (1, 0). From there (4, 4) lies (3, 4) away: 2 * 3 / 5, and it is 8 long.
    weight = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])
    train = of(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), weight)
    query = of(torch.tensor([[4.0, 4.0], [1.0, 0.0]]), weight)
    assert NCI().fit(train, torch.tensor([0, 1])).score(query).tolist() == [-1.2, 0]
    with_length = NCI(alpha=0.5).fit(train, torch.tensor([0, 1]))
    assert with_length.score(query).tolist() == pytest.approx([-5.2, -0.5])


def test_a_negative_alpha_is_refused() -> None:
    with pytest.raises(UsageError, match="alpha must be a number, at least 0"):
        NCI(alpha=-1)
