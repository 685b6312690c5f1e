import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import dirichlet, entropy
from torch.distributions import Dirichlet, kl_divergence

from goen.functional.predictive import (
    dirichlet_kl_to_uniform,
    dirichlet_nll,
    log_mean,
    mutual_information,
    summed_variance,
    vacuity,
)


def some_log_probabilities(scale: float = 2.0, seed: int = 0) -> torch.Tensor:
    logits = np.random.default_rng(seed).normal(size=(7, 30, 4)) * scale
    return torch.log_softmax(torch.from_numpy(logits), dim=2)


def some_alphas() -> torch.Tensor:
    return torch.from_numpy(1 + np.random.default_rng(1).exponential(3.0, size=(20, 5)))


def test_samples_meet_slow_loops() -> None:
    log_p = some_log_probabilities()
    p = log_p.exp().numpy()
    for n in range(p.shape[1]):
        mean = sum(p[s, n] for s in range(7)) / 7
        information = entropy(mean) - sum(entropy(p[s, n]) for s in range(7)) / 7
        variance = sum(
            sum((p[s, n, c] - mean[c]) ** 2 for s in range(7)) / 7 for c in range(p.shape[2])
        )
        assert np.allclose(log_mean(log_p)[n].exp(), mean, rtol=1e-12)
        assert math.isclose(mutual_information(log_p)[n], information, rel_tol=1e-10)
        assert math.isclose(summed_variance(log_p)[n], variance, rel_tol=1e-12)


def test_mutual_information_is_that_of_the_joint_distribution() -> None:
    # I(sample; class) from its definition: the divergence of p(s, c) from p(s) p(c).
    p = some_log_probabilities().exp().numpy()[:, 0]
    joint = p / 7
    apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    expected = (joint * np.log(joint / apart)).sum()
    found = mutual_information(torch.from_numpy(p).log()[:, None]).item()
    assert math.isclose(found, expected, rel_tol=1e-10)


def test_samples_by_hand() -> None:
    # Means (1/2, 1/2), (3/4, 1/4), (2/5, 3/5).
    p = torch.tensor(
        [[[1, 0], [0.5, 0.5], [0.4, 0.6]], [[0, 1], [1, 0], [0.4, 0.6]]], dtype=torch.float64
    )
    between = math.log(4) - 0.75 * math.log(3) - math.log(2) / 2
    expected = torch.tensor([math.log(2), between, 0.0], dtype=torch.float64)
    assert torch.allclose(mutual_information(p.log()), expected, atol=1e-15)
    assert torch.allclose(
        summed_variance(p.log()), torch.tensor([0.5, 0.125, 0]).double(), atol=1e-15
    )


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(0, 1000),
    samples=st.integers(1, 6),
    classes=st.integers(1, 6),
)
def test_mutual_information_keeps_its_bounds(
    seed: int, scale: float, samples: int, classes: int
) -> None:
    logits = np.random.default_rng(seed).normal(size=(samples, 5, classes)) * scale
    found = mutual_information(torch.log_softmax(torch.from_numpy(logits), dim=2))
    assert (found >= 0).all()
    assert (found <= math.log(min(samples, classes)) + 1e-12).all()


def test_mutual_information_keeps_its_digits_where_predictions_are_sure() -> None:
    # p = (1 - e, e) and (1 - 3e, 3e). With f(x) = x log x and tiny e:
    # I = (f(e) + f(3e)) / 2 - f(2e) = e (3 log 3 / 2 - 2 log 2), up to a relative e.
    for e in (1e-6, 1e-12, 1e-100):
        other = torch.tensor([e, 3 * e], dtype=torch.float64)
        log_p = torch.stack([torch.log1p(-other), other.log()], dim=1)[:, None]
        expected = e * (1.5 * math.log(3) - 2 * math.log(2))
        assert math.isclose(mutual_information(log_p).item(), expected, rel_tol=3e-6)


def test_equal_samples_agree_exactly() -> None:
    log_p = some_log_probabilities(10.0)[:1].repeat(20, 1, 1)
    assert mutual_information(log_p).max() < 1e-28
    assert summed_variance(log_p).max() < 1e-30
    assert torch.equal(mutual_information(log_p[:1]), torch.zeros(30, dtype=torch.float64))
    assert torch.equal(summed_variance(log_p[:1]), torch.zeros(30, dtype=torch.float64))


def test_the_order_of_samples_and_of_classes_does_not_matter() -> None:
    log_p = some_log_probabilities()
    for measure in (mutual_information, summed_variance):
        assert torch.allclose(measure(log_p.flip(0)), measure(log_p), rtol=1e-12)
        assert torch.allclose(measure(log_p.flip(2)), measure(log_p), rtol=1e-12)
        assert torch.allclose(measure(log_p.flip(1)), measure(log_p).flip(0), rtol=1e-12)


def test_nan_stays_nan() -> None:
    log_p = some_log_probabilities()
    log_p[3, 5, 2] = torch.nan
    for measure in (mutual_information, summed_variance):
        assert torch.isnan(measure(log_p)).nonzero().flatten().tolist() == [5]


def test_the_likelihood_is_the_integral_over_the_dirichlet() -> None:
    alphas = some_alphas()
    labels = torch.arange(20) % 5
    found = dirichlet_nll(alphas, labels)
    for alpha, label, value in zip(alphas, labels, found, strict=True):
        assert math.isclose(-math.log(dirichlet(alpha.numpy()).mean()[label]), value, rel_tol=1e-12)
    # Numerically, for two classes: the integral of p Beta(p; 3.5, 1.2) dp.
    p = (np.arange(200_000) + 0.5) / 200_000
    density = dirichlet([3.5, 1.2]).pdf(np.stack([p, 1 - p]))
    two = torch.tensor([[3.5, 1.2]], dtype=torch.float64)
    integral = (p * density).mean()
    assert math.isclose(
        dirichlet_nll(two, torch.tensor([0])).item(), -math.log(integral), abs_tol=1e-4
    )


def test_the_divergence_meets_torch_and_monte_carlo() -> None:
    alphas = some_alphas()
    uniform = Dirichlet(torch.ones_like(alphas))
    found = dirichlet_kl_to_uniform(alphas)
    assert torch.allclose(found, kl_divergence(Dirichlet(alphas), uniform), rtol=1e-12)
    alpha = alphas[0].numpy()
    drawn = dirichlet(alpha).rvs(20_000, random_state=0).T
    ratios = dirichlet(alpha).logpdf(drawn) - dirichlet(np.ones(5)).logpdf(drawn)
    assert abs(found[0].item() - ratios.mean()) < 4 * ratios.std() / math.sqrt(20_000)


def test_the_dirichlet_by_hand() -> None:
    alpha = torch.tensor([[1.0, 1.0], [2.0, 1.0], [5.0, 3.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0])
    # 1/2, 1/3 and 5/8; Beta(2, 1) has density 2p: the integral of 2p log 2p is log 2 - 1/2.
    expected = torch.tensor([2.0, 3.0, 1.6], dtype=torch.float64)
    assert torch.allclose(dirichlet_nll(alpha, labels).exp(), expected)
    divergence = dirichlet_kl_to_uniform(alpha[:2]).tolist()
    assert divergence == pytest.approx([0, math.log(2) - 0.5], abs=1e-15)
    assert vacuity(alpha).tolist() == [1, 2 / 3, 0.25]


def test_the_dirichlet_losses_have_right_gradients() -> None:
    alpha = some_alphas().requires_grad_()
    labels = torch.arange(20) % 5
    assert torch.autograd.gradcheck(lambda a: dirichlet_nll(a, labels), alpha)
    assert torch.autograd.gradcheck(dirichlet_kl_to_uniform, alpha)
