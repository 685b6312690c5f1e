import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from goen.training.losses import logit_norm_loss, rotation_loss


def test_logit_normalisation_equals_a_slow_loop() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 4)), rng.integers(4, size=6)
    expected = []
    for row, label in zip(logits, labels, strict=True):
        scaled = row / math.sqrt((row**2).sum()) / 0.3
        log_p = scaled - logsumexp(scaled)
        expected.append(-0.8 * log_p[label] - 0.2 * log_p.mean())
    tensors = torch.from_numpy(logits), torch.from_numpy(labels)
    ours = logit_norm_loss(*tensors, temperature=0.3, label_smoothing=0.2)
    assert float(ours) == pytest.approx(np.mean(expected), rel=1e-12)


def test_longer_logits_have_the_same_loss_and_a_gradient_across() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0]], requires_grad=True)
    logit_norm_loss(logits, torch.tensor([0]), temperature=0.5, label_smoothing=0.0).backward()
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) > 0.1
    assert float((logits.grad * logits.detach()).sum()) == pytest.approx(0, abs=1e-6)


def test_turned_images_and_others_count_the_same() -> None:
    # Three upright ones with probability 1/4, a turned one with 1/2.
    logits = torch.zeros(4, 4)
    logits[3] = torch.tensor([0.0, 0.0, math.log(3), 0.0])
    loss = rotation_loss(logits, torch.tensor([0, 0, 0, 2]), upright=3)
    assert float(loss) == pytest.approx((math.log(4) + math.log(2)) / 2)
