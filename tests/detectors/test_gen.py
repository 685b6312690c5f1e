import numpy as np
import pytest
import torch
from scipy.special import softmax

from goen.detectors import GEN
from goen.errors import UsageError
from goen.outputs import Outputs


def test_it_is_the_papers_sum_over_the_largest_hundred() -> None:
    logits = np.random.default_rng(0).normal(size=(20, 1000))
    p = np.sort(softmax(logits, axis=1), axis=1)[:, -100:]
    score = GEN().score(Outputs(torch.from_numpy(logits), {}))
    assert np.allclose(score.numpy(), (p**0.1 * (1 - p) ** 0.1).sum(1), rtol=1e-10)


def test_by_hand() -> None:
    # p = (4/5, 1/5): two times sqrt(4/25)
    logits = torch.log(torch.tensor([[4.0, 1.0]], dtype=torch.float64))
    assert GEN(gamma=0.5).score(Outputs(logits, {})).item() == pytest.approx(0.8)
    assert GEN(gamma=0.5, top=1).score(Outputs(logits, {})).item() == pytest.approx(0.4)


def test_sure_answers_do_not_tie() -> None:
    logits = torch.tensor([[0.0, 0.0], [50.0, 0.0], [51.0, 0.0], [900.0, 0.0]])
    score = GEN().score(Outputs(logits, {}))
    assert (score.diff() < 0).all()


def test_what_cannot_be_meant_is_refused() -> None:
    for gamma in (0.0, 1.0, -0.1):
        with pytest.raises(UsageError, match="gamma must be a number, above 0 and below 1"):
            GEN(gamma=gamma)
    with pytest.raises(UsageError, match="top must be an integer, at least 1; got"):
        GEN(top=0)
    with pytest.raises(UsageError, match="at least two"):
        GEN().score(Outputs(torch.zeros(2, 1), {}))
