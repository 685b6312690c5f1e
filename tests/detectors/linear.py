"""Random rows behind a ReLU, with a linear classifier, for the tests of methods that read both."""

import torch
from torch import Tensor

from goen.outputs import LinearClassifier, Outputs

CLASSES, DIM = 3, 8


def weights(classes: int = CLASSES, dim: int = DIM) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    return weight, torch.randn(classes, generator=generator, dtype=torch.float64)


def of(z: Tensor, weight: Tensor, bias: Tensor | None = None) -> Outputs:
    """Of these features and this classifier."""
    bias = torch.zeros(len(weight), dtype=weight.dtype) if bias is None else bias
    return Outputs(z @ weight.T + bias, {"z": z}, classifier=LinearClassifier(weight, bias, "z"))


def some(count: int, seed: int = 0) -> Outputs:
    """Of random features behind a ReLU."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, DIM, dtype=torch.float64, generator=generator).relu()
    return of(z, *weights())


def labels(count: int) -> Tensor:
    return torch.arange(count) % CLASSES
