from contextlib import ExitStack

import pytest
import torch
from torch import nn

from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor
from goen.models import placement as placement_module
from goen.models.placement import (
    as_called,
    evaluating,
    find_device,
    full_precision,
    placement,
    require_values,
)


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


def test_a_model_in_evaluation_mode_is_not_entered_part_by_part(model: nn.Module) -> None:
    model.eval()
    with evaluating(model):
        assert not placement_module._in_use
        model.train()  # as a forward pass might
    assert modes(model) == [False] * 4
    assert not placement_module._in_use


def test_users_of_a_model_in_evaluation_mode_do_not_disturb_others(model: nn.Module) -> None:
    model.eval()
    first, second = ExitStack(), ExitStack()
    first.enter_context(evaluating(model))
    model.train()  # by its owner, who then uses it in another thread
    second.enter_context(evaluating(model))
    assert modes(model) == [False] * 4
    first.close()
    assert modes(model) == [False] * 4
    second.close()
    assert modes(model) == [True] * 4

    # Nor does the first to leave undo what a forward of the second has just done.
    model.eval()
    first.enter_context(evaluating(model))
    model.train()
    second.enter_context(evaluating(model))
    model[2].train()
    first.close()
    assert modes(model) == [False, False, False, True]
    second.close()

    # And the other way round: the first restores training mode only when the second has left.
    first.enter_context(evaluating(model))
    second.enter_context(evaluating(model))
    first.close()
    assert modes(model) == [False] * 4
    second.close()
    assert modes(model) == [True] * 4


def test_the_first_tensor_tells_the_device_and_the_first_float_the_type() -> None:
    model = nn.Module()
    model.register_buffer("count", torch.zeros(1, dtype=torch.int64, device="meta"))
    model.register_buffer("scale", torch.zeros(1, dtype=torch.float16, device="meta"))
    assert placement(model) == (torch.device("meta"), torch.float16)
    model.register_parameter("weight", nn.Parameter(torch.zeros(1, dtype=torch.float64)))
    assert placement(model) == (torch.device("cpu"), torch.float64)
    counter = nn.Module()
    counter.register_buffer("count", torch.zeros(1, dtype=torch.int64, device="meta"))
    assert placement(counter) == (torch.device("meta"), torch.float32)


def test_a_model_without_parameters_is_on_the_cpu_in_float32() -> None:
    model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    assert placement(model) == (torch.device("cpu"), torch.float32)
    assert FeatureExtractor(model, ["0"])(torch.rand(2, 3, 4, 4)).features["0"].shape == (2, 3)
    norm = nn.BatchNorm2d(3, affine=False).double()
    assert placement(norm)[1] == torch.float64


def test_a_weight_without_values_is_named(model: nn.Module) -> None:
    require_values(model)
    model[1].to("meta")
    with pytest.raises(UsageError, match=r"The model's 1\.weight is on torch's meta device"):
        require_values(model)
    buffered = nn.BatchNorm1d(2)
    buffered.running_mean = torch.zeros(2, device="meta")
    with pytest.raises(UsageError, match="running_mean"):
        require_values(buffered)


def test_auto_is_cuda_if_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda available=available: available)
        assert find_device("auto") == torch.device(kind)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:99", "meta", "cpu:x", "0"])
def test_a_device_that_is_not_here_is_an_error_that_names_those_that_are(name: str) -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("cpu:0") == torch.device("cpu", 0)
    with pytest.raises(UsageError, match=rf"no device '{name}' on this machine\. Available: cpu"):
        find_device(name)


def test_autocast_is_off_within_and_on_again_afterwards() -> None:
    def product() -> torch.dtype:
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    with torch.autocast("cpu", torch.bfloat16):
        with full_precision():
            assert product() is torch.float32
        assert product() is torch.bfloat16
        with pytest.raises(KeyError), full_precision():
            raise KeyError
        assert product() is torch.bfloat16


def test_new_tensors_of_goen_are_on_the_cpu_and_those_of_a_model_where_its_user_has_them() -> None:
    with torch.device("meta"):
        with full_precision():
            assert torch.zeros(1).device.type == "cpu"
            with full_precision(), as_called():
                assert torch.zeros(1).is_meta
            assert torch.zeros(1).device.type == "cpu"
        with as_called():
            assert torch.zeros(1).is_meta
        with pytest.raises(KeyError), full_precision():
            raise KeyError
        assert torch.zeros(1).is_meta
    with as_called():
        assert torch.zeros(1).device.type == "cpu"
