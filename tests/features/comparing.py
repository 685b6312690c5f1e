"""What the tests of tapping share: models that answer oddly, and comparisons."""

import pytest
import torch
from torch import Tensor, nn

from tests.features.architectures import (
    CASES,
)

NAMES = sorted(CASES)


def close(one: Tensor, other: Tensor, atol: float = 1e-6) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=atol)


def hooks_of(model: nn.Module) -> list[int]:
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


# The abilities that a model in half precision needs; see tests/processor.py.
HALF = [
    pytest.param(torch.float16, marks=pytest.mark.needs("float16 convolution")),
    pytest.param(torch.bfloat16, marks=pytest.mark.needs("bfloat16 convolution")),
]


FLOAT_AND_HALF = [torch.float32, HALF[1]]


class Returns(nn.Module):
    """Whatever the function makes of the pixels."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x.flatten(1))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 2, 1)
        self.second = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.first(x)
        raise RuntimeError("the model's own error")
