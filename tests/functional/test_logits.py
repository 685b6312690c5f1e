from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor

from goen.errors import UsageError
from goen.functional.logits import (
    check_several_classes,
    energy_score,
    generalised_entropy,
    max_softmax_score,
)


def random_logits(rows: int = 500, classes: int = 10) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, classes)) * 3


def test_it_ranks_as_one_minus_the_largest_probability() -> None:
    logits = random_logits()
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


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1000.0])
def test_energy_is_scipys_log_sum_exp(temperature: float) -> None:
    logits = random_logits()
    expected = -temperature * logsumexp(logits / temperature, axis=1)
    assert np.allclose(energy_score(torch.from_numpy(logits), temperature).numpy(), expected)


def test_energy_by_hand() -> None:
    # -2 log(e^(log 9 / 2) + e^(log 25 / 2)) = -2 log(3 + 5) = -6 log 2
    logits = torch.log(torch.tensor([[9.0, 25.0]], dtype=torch.float64))
    assert energy_score(logits, 2.0).item() == pytest.approx(-6 * np.log(2))


@pytest.mark.parametrize(("gamma", "top"), [(0.1, 100), (0.5, 3), (0.9, 1), (0.1, 10)])
def test_generalised_entropy_is_the_papers_sum(gamma: float, top: int) -> None:
    logits = random_logits()
    expected = []
    for p in softmax(logits, axis=1):
        largest = sorted(p, reverse=True)[:top]
        expected.append(sum(q**gamma * (1 - q) ** gamma for q in largest))
    score = generalised_entropy(torch.from_numpy(logits), gamma, top)
    assert np.allclose(score.numpy(), expected, rtol=1e-10)


def test_generalised_entropy_by_hand() -> None:
    # p = (1/2, 1/4, 1/4): sqrt(1/4) + 2 sqrt(3/16) = (1 + sqrt 3) / 2
    logits = torch.log(torch.tensor([[2.0, 1.0, 1.0]], dtype=torch.float64))
    assert generalised_entropy(logits, 0.5).item() == pytest.approx((1 + np.sqrt(3)) / 2)
    assert generalised_entropy(logits, 0.5, top=1).item() == pytest.approx(0.5)


def test_generalised_entropy_does_not_tie_where_softmax_saturates() -> None:
    # Two others at a distance g: 1 - p is 2 e^-g, and each of the others e^-g.
    gaps = np.array([40.0, 100.0, 101.0, 2000.0])
    logits = torch.zeros(4, 3, dtype=torch.float64)
    logits[:, 1] = torch.from_numpy(gaps)
    expected = (2**0.1 + 2) * np.exp(-0.1 * gaps)
    assert np.allclose(generalised_entropy(logits).numpy(), expected, rtol=1e-12, atol=0)


def test_generalised_entropy_does_not_mind_the_order_or_the_level_of_classes() -> None:
    logits = torch.from_numpy(random_logits())
    score = generalised_entropy(logits)
    assert torch.allclose(generalised_entropy(logits.flip(1) + 1000), score)


def test_what_cannot_be_meant_is_refused() -> None:
    check_several_classes(torch.zeros(0, 2))
    with pytest.raises(UsageError, match="at least two"):
        check_several_classes(torch.zeros(3, 1))


@pytest.mark.parametrize("score", [energy_score, max_softmax_score, generalised_entropy])
def test_a_score_does_not_keep_the_graph_of_its_logits(score: Callable[[Tensor], Tensor]) -> None:
    assert not score(torch.ones(2, 3, requires_grad=True)).requires_grad
