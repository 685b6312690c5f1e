import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax

from goen.detectors import MCM
from goen.errors import FitError, UsageError
from tests.detectors.linear import labels, of, some, weights


@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_it_is_the_softmax_of_scipys_cosines(temperature: float) -> None:
    train, other = some(60), some(30, 1)
    mcm = MCM(temperature=temperature).fit(train, labels(60))
    cosines = 1 - cdist(other.features["z"].numpy(), weights()[0].numpy(), "cosine")
    largest = softmax(cosines / temperature, axis=1).max(axis=1)
    found = mcm.score(other).numpy()
    assert np.allclose(1 / (1 + np.exp(found)), largest, rtol=1e-9)


def test_by_hand() -> None:
    # Cosines 0.6 and 0.8 with two names: the odds of the second are e^0.2. The bias is not read.
    weight, bias = torch.tensor([[2.0, 0.0], [0.0, 5.0]]), torch.tensor([9.0, 0.0])
    outputs = of(torch.tensor([[3.0, 4.0]]), weight, bias)
    assert MCM().fit(outputs, torch.tensor([0])).score(outputs).item() == pytest.approx(-0.2)
    sharp = MCM(temperature=0.1).fit(outputs, torch.tensor([0]))
    assert sharp.score(outputs).item() == pytest.approx(-2)


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="temperature must be a number, above 0"):
        MCM(temperature=0)
    with pytest.raises(UsageError, match="needs at least two"):
        MCM().fit(of(torch.ones(2, 2), torch.ones(1, 2)), torch.tensor([0, 0]))
    with pytest.raises(FitError, match="A class has the embedding 0"):
        MCM().fit(
            of(torch.ones(2, 2), torch.tensor([[1.0, 1.0], [0.0, 0.0]])), torch.tensor([0, 0])
        )
