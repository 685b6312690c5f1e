import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from goen.detectors import Energy
from goen.errors import UsageError
from goen.outputs import Outputs


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1000.0])
def test_it_is_scipys_log_sum_exp(temperature: float) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 1000))
    score = Energy(temperature=temperature).score(Outputs(torch.from_numpy(logits), {}))
    expected = -temperature * logsumexp(logits / temperature, axis=1)
    assert np.allclose(score.numpy(), expected, rtol=1e-12)


def test_by_hand() -> None:
    # -log(3 + 5) = -3 log 2
    logits = torch.log(torch.tensor([[3.0, 5.0]], dtype=torch.float64))
    assert Energy().score(Outputs(logits, {})).item() == pytest.approx(-3 * np.log(2))


def test_large_logits_neither_overflow_nor_tie() -> None:
    logits = torch.tensor([[60000.0, 0.0], [60032.0, 0.0]], dtype=torch.float16)
    assert Energy().score(Outputs(logits, {})).tolist() == [-60000, -60032]


def test_a_temperature_is_above_zero() -> None:
    with pytest.raises(UsageError, match="got 0"):
        Energy(temperature=0)
