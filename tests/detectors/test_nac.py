from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit
from torch import Tensor

from goen.detectors import NAC
from goen.detectors.nac import inner_edges
from goen.errors import FitError, UsageError
from goen.outputs import Outputs
from tests.detectors.linear import DIM, labels, of, some, weights


def states(outputs: Outputs, steepness: float) -> NDArray[np.float64]:
    """By autograd: the divergence of the uniform distribution from the softmax, by the feature."""
    z = outputs.features["z"].clone().requires_grad_()
    weight, bias = weights()
    log_p = (z @ weight.T + bias).log_softmax(dim=1)
    uniform = torch.full_like(log_p, 1 / log_p.shape[1])
    divergence = torch.nn.functional.kl_div(log_p, uniform, reduction="sum")
    (gradient,) = torch.autograd.grad(divergence, z)
    product: Tensor = z.detach() * gradient
    return np.asarray(expit(steepness * product.numpy()))


def ends(per_side: int) -> list[float]:
    """All ends of the bins, from the definition: equal steps of x, of which the logarithm."""
    step = (1000**0.5 - 1) / per_side
    left = [float(np.log(1 + k * step) / np.log(1000)) for k in range(per_side + 1)]
    return [*left, *(1 - end for end in reversed(left[:-1]))]


def slow(
    train: NDArray[np.float64], test: NDArray[np.float64], per_side: int, enough: float
) -> list[float]:
    edges = ends(per_side)
    found = []
    for row in test:
        covered = []
        for neuron, state in enumerate(row):
            (place,) = [
                k
                for k, (low, high) in enumerate(pairwise(edges))
                if low <= state < high or (k == 2 * per_side - 1 and state == 1)
            ]
            last = place == 2 * per_side - 1
            count = sum(
                edges[place] <= other[neuron] and (last or other[neuron] < edges[place + 1])
                for other in train
            )
            covered.append(min(count / (enough * len(train)), 1))
        found.append(-float(np.mean(covered)))
    return found


@pytest.mark.parametrize(("steepness", "per_side", "enough"), [(100.0, 24, 0.05), (3.0, 5, 0.3)])
def test_it_is_a_slow_loop_over_neurons_and_bins(
    steepness: float, per_side: int, enough: float
) -> None:
    train, other = some(90), some(25, 1)
    nac = NAC(steepness=steepness, bins=per_side, enough=enough).fit(train, labels(90))
    expected = slow(states(train, steepness), states(other, steepness), per_side, enough)
    assert np.allclose(nac.score(other).numpy(), expected, atol=1e-12)
    assert len({*expected}) > 5


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_the_default_steepness_is_found_in_training_images(scale: float) -> None:
    outermost = logit(1 - ends(24)[1])  # of 24 bins
    assert outermost == pytest.approx(2.0014, abs=1e-4)
    weight, bias = weights()
    train = some(90)
    z = train.features["z"] * scale
    of_scale = of(z, weight / scale, bias)
    nac = NAC().fit(of_scale, labels(90))
    products = np.log(states(train, 1.0) / (1 - states(train, 1.0)))
    assert nac.steepness_.item() == pytest.approx(outermost / np.sqrt((products**2).mean()))
    assert torch.equal(nac.coverage_, NAC().fit(train, labels(90)).coverage_)


def test_the_bins_are_those_of_the_definition() -> None:
    assert np.allclose(inner_edges(24).numpy(), ends(24)[1:-1], atol=1e-15)
    assert len(ends(24)) == 49
    widths = np.diff(ends(24))
    assert widths[23] == widths.min()
    assert widths[0] == widths.max()


def test_by_hand() -> None:
    # Two classes with weights 1 and -1, feature 1: p = sigmoid(2), and the gradient is
    # (p - 1/2) - (1 - p - 1/2) = 2 p - 1 = tanh(1) = 0.7616. Steepness 1: sigmoid(0.7616) = 0.68,
    # in the fourth of the four bins that end at 0.404, 0.5 and 0.596. Feature 0.2: the gradient
    # tanh(0.2) = 0.197, sigmoid(0.0395) = 0.51, in the third bin.
    weight = torch.tensor([[1.0], [-1.0]])
    train = of(torch.tensor([[1.0], [1.0], [1.0], [0.2]]), weight)
    nac = NAC(steepness=1, bins=2, enough=0.75).fit(train, torch.tensor([0, 0, 0, 1]))
    assert nac.coverage_[:, 0].tolist() == pytest.approx([0, 0, 1 / 3, 1])
    test = of(torch.tensor([[1.0], [0.2], [-0.2], [0.0]]), weight)
    # -0.2: the gradient is -0.197, the product positive again. 0: sigmoid(0) = 1/2, the third bin.
    assert nac.score(test).tolist() == pytest.approx([-1, -1 / 3, -1 / 3, -1 / 3])


def test_a_sample_of_each_class_alike_is_counted() -> None:
    train = some(90)
    nac = NAC(rows=9).fit(train, labels(90))
    assert (nac.coverage_.sum(dim=0) > 0).all()
    one = NAC(rows=9, enough=1).fit(train, labels(90))
    assert torch.allclose(one.coverage_.sum(dim=0), torch.ones(DIM, dtype=torch.float64))
    assert {round(9 * value) for value in one.coverage_.flatten().tolist()} <= {*range(10)}


def test_what_cannot_be_meant_is_refused() -> None:
    for wrong in ({"steepness": 0}, {"bins": 1}, {"enough": 0}, {"enough": 1.1}, {"rows": 0}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            NAC(**wrong)
    with pytest.raises(FitError, match="All features or all gradients"):
        NAC().fit(of(torch.zeros(2, 2), torch.eye(2)), torch.tensor([0, 1]))
    with pytest.raises(UsageError, match="needs at least two"):
        NAC().fit(of(torch.ones(2, 2), torch.ones(1, 2)), torch.tensor([0, 0]))


def test_a_row_that_is_not_finite_is_refused() -> None:
    nac = NAC().fit(some(60), labels(60))
    broken = some(3, 1)
    broken.features["z"][1, 0] = torch.nan
    with pytest.raises(UsageError, match="1 of 3 scores"):
        nac.score(broken)
