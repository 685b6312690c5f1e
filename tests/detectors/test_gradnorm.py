import numpy as np
import pytest
import torch
from torch.nn.functional import linear, log_softmax

from goen.detectors import GradNorm
from goen.errors import GoenWarning, UsageError
from goen.outputs import Outputs
from tests.detectors.linear import labels, of, some, weights


def test_the_closed_form_is_the_gradient_of_autograd() -> None:
    outputs = some(20)
    detector = GradNorm().fit(outputs, labels(20))
    weight, bias = weights()
    expected = []
    for row in outputs.features["z"]:
        parameter = weight.clone().requires_grad_()
        loss = -log_softmax(linear(row, parameter, bias), dim=0).mean()
        expected.append(-torch.autograd.grad(loss, parameter)[0].abs().sum().item())
    assert np.allclose(detector.score(outputs).numpy(), expected, rtol=1e-12)


def test_by_hand() -> None:
    # p is (3/4, 1/4), 1/4 from 1/2 each; the feature is 3 + 1 long.
    outputs = Outputs(torch.tensor([[0.75, 0.25]]).log(), {"z": torch.tensor([[3.0, 1.0]])})
    score = GradNorm().fit(outputs, torch.tensor([0])).score(outputs)
    assert score.item() == pytest.approx(-2)


def test_negative_features_are_a_warning() -> None:
    weight, bias = weights()
    outputs = of(torch.tensor([[1.0, -1, 2, 2, 1, -3, 0, 0]]).double(), weight, bias)
    with pytest.warns(GoenWarning, match="made for features behind a ReLU, and 25% of these val"):
        GradNorm().fit(outputs, torch.tensor([0]))


def test_one_class_is_refused() -> None:
    with pytest.raises(UsageError, match="needs at least two"):
        GradNorm().fit(Outputs(torch.zeros(3, 1), {"z": torch.ones(3, 2)}), torch.zeros(3).long())
