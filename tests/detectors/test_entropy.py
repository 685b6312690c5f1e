import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from goen.detectors import Entropy
from goen.errors import UsageError
from goen.outputs import Outputs


def test_it_is_scipys_entropy_of_the_softmax() -> None:
    logits = torch.randn(50, 7, generator=torch.manual_seed(0), dtype=torch.float64) * 4
    expected = entropy(softmax(logits.numpy(), axis=1), axis=1)
    assert np.allclose(Entropy().score(Outputs(logits, {})).numpy(), expected, rtol=1e-12)


def test_by_hand() -> None:
    # (1/2, 1/4, 1/4): 1/2 log 2 + 1/2 log 4 = 3/2 log 2.
    logits = torch.tensor([[0.5, 0.25, 0.25], [1.0, 1.0, 1.0]], dtype=torch.float64).log()
    expected = [1.5 * np.log(2), np.log(3)]
    assert Entropy().score(Outputs(logits, {})).tolist() == pytest.approx(expected)


def test_one_class_is_refused() -> None:
    with pytest.raises(UsageError, match="needs at least two"):
        Entropy().score(Outputs(torch.zeros(3, 1), {}))
