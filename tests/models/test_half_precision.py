import pytest
import torch
from torch import nn

from goen.errors import UsageError
from goen.models.half_precision import as_half, from_half, round_to_half


def test_matrices_and_filters_are_rounded_and_nothing_else() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    norm = network[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_var is not None
    norm.running_var.fill_(1e-9)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    round_to_half(network)
    for name, value in network.state_dict().items():
        assert value.dtype == before[name].dtype
        rounded = name in ("0.weight", "3.weight")
        assert torch.equal(value, before[name].half().float() if rounded else before[name])
        assert torch.equal(value, before[name]) != rounded


def test_a_weight_that_is_too_large_is_refused_and_nothing_changed() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        network[1].weight[0, 0] = 7e4  # type: ignore[index]
    before = [parameter.clone() for parameter in network.parameters()]
    with pytest.raises(UsageError, match=r"A weight of 1\.weight is too large"):
        round_to_half(network)
    pairs = zip(before, network.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_two_bytes_where_nothing_is_lost() -> None:
    exact, other = torch.tensor([0.5, -2.0, 65504.0]), torch.tensor([0.5, 0.1])
    assert as_half(exact).dtype == torch.float16
    for values in (exact, other, torch.tensor([1e6]), torch.tensor([float("nan")])):
        back = from_half(as_half(values))
        assert back.dtype == torch.float32
        assert torch.equal(back.nan_to_num(7.0), values.nan_to_num(7.0))
    assert as_half(other) is other
    whole = torch.tensor([3])
    assert as_half(whole) is from_half(whole) is whole
