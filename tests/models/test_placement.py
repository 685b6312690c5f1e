from contextlib import ExitStack

import pytest
import torch
from torch import nn

from goen.models.placement import evaluating, placement
from goen.models.tapping.tapped import Tapped


def modes(model: nn.Module) -> list[bool]:
    return [part.training for part in model.modules()]


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2).eval(), nn.Dropout())


def test_every_part_is_left_in_its_own_mode(model: nn.Module) -> None:
    before = modes(model)
    assert before == [True, True, False, True]
    with pytest.raises(KeyError), evaluating(model):
        assert modes(model) == [False] * 4
        raise KeyError
    assert modes(model) == before


@pytest.mark.parametrize("part_alone", [False, True])
def test_of_several_users_the_last_to_leave_restores_the_mode(
    model: nn.Module, part_alone: bool
) -> None:
    before = modes(model)
    first, second = ExitStack(), ExitStack()
    first.enter_context(evaluating(model))
    second.enter_context(evaluating(model[0] if part_alone else model))
    first.close()
    assert not model[0].training
    learnt = model[0].running_mean.clone()
    model[0](torch.randn(5, 2))
    assert torch.equal(model[0].running_mean, learnt)
    second.close()
    assert modes(model) == before


def test_a_model_without_parameters_is_on_the_cpu_in_float32() -> None:
    model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    assert placement(model) == (torch.device("cpu"), torch.float32)
    assert Tapped(model, ["0"])(torch.rand(2, 3, 4, 4)).features["0"].shape == (2, 3)
    norm = nn.BatchNorm2d(3, affine=False).double()
    assert placement(norm)[1] == torch.float64
