import numpy as np
import pytest
import torch
from scipy.special import softmax

from goen.detectors import MaxSoftmax
from goen.errors import UsageError
from goen.outputs import Outputs


def test_it_ranks_as_one_minus_the_largest_probability() -> None:
    logits = np.random.default_rng(0).normal(size=(200, 1000))
    score = MaxSoftmax().score(Outputs(torch.from_numpy(logits), {})).numpy()
    assert (np.argsort(score) == np.argsort(1 - softmax(logits, axis=1).max(1))).all()


def test_by_hand() -> None:
    # p = 3/4: the odds of being wrong are 1 to 3.
    logits = torch.log(torch.tensor([[3.0, 1.0]], dtype=torch.float64))
    assert MaxSoftmax().score(Outputs(logits, {})).item() == pytest.approx(-np.log(3))


def test_one_class_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="at least two"):
        MaxSoftmax().score(Outputs(torch.zeros(2, 1), {}))
