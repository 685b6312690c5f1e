import numpy as np
import torch
from scipy.special import softmax

from goen.functional.logits import max_softmax_score


def test_it_ranks_as_one_minus_the_largest_probability() -> None:
    logits = np.random.default_rng(0).normal(size=(500, 10)) * 3
    p = softmax(logits, axis=1).max(1)
    score = max_softmax_score(torch.from_numpy(logits)).numpy()
    assert np.allclose(score, np.log((1 - p) / p))
    assert (np.argsort(score) == np.argsort(1 - p)).all()


def test_by_hand() -> None:
    # p = 3/4: log((1/4) / (3/4)) = -log 3
    score = max_softmax_score(torch.log(torch.tensor([[3.0, 1.0], [0.5, 0.5]])))
    assert np.allclose(score, [-np.log(3), 0])


def test_it_does_not_tie_where_softmax_saturates() -> None:
    logits = torch.tensor([[50.0, 0.0], [60.0, 0.0], [800.0, 0.0]])
    assert max_softmax_score(logits).tolist() == [-50, -60, -800]


def test_one_class_is_certain() -> None:
    assert max_softmax_score(torch.zeros(2, 1)).tolist() == [-np.inf, -np.inf]
