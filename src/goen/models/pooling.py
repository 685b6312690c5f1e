"""One number per channel of a feature map, or of tokens."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from goen.errors import unknown

Pooling = Literal["mean", "mean_abs", "std", "max"]
"""Over space: the mean, the mean of the absolute values, the standard deviation, the maximum."""


def pool(values: Tensor, pooling: Pooling, axes: Sequence[int] = (2, 3)) -> Tensor:
    """Feature maps ``(N, C, H, W)`` to features ``(N, C)``; of other shapes, without these axes.

    The standard deviation is that of the map's own values, divided by their number.

    Raises:
        UsageError: no such pooling.

    Example:
        >>> values = torch.tensor([-3.0, 1.0]).view(1, 1, 1, 2)
        >>> [pool(values, how).item() for how in ("mean", "mean_abs", "std", "max")]
        [-1.0, 2.0, 2.0, 1.0]
    """
    axes = list(axes)
    if pooling == "mean":
        return values.mean(axes)
    if pooling == "mean_abs":
        return values.abs().mean(axes)
    if pooling == "std":
        return values.var(axes, correction=0).sqrt()
    if pooling == "max":
        return values.amax(axes)
    raise unknown("pooling", pooling, get_args(Pooling))


def pool_tokens(values: Tensor, pooling: Pooling, mask: Tensor) -> Tensor:
    """Tokens ``(N, T, C)`` to features ``(N, C)``, over those where the mask ``(N, T)`` is not 0.

    A row without any such token gives zeros.

    Example:
        >>> tokens, mask = torch.tensor([[[1.0], [-3.0], [9.0]]]), torch.tensor([[1, 1, 0]])
        >>> [pool_tokens(tokens, how, mask).item() for how in ("mean", "mean_abs", "std", "max")]
        [-1.0, 2.0, 2.0, 1.0]
    """
    counted = mask.to(values.dtype)[:, :, None]
    number = counted.sum(1).clamp_min(1)

    def mean(of: Tensor) -> Tensor:
        return (of * counted).sum(1) / number

    if pooling == "mean":
        return mean(values)
    if pooling == "mean_abs":
        return mean(values.abs())
    if pooling == "std":
        return mean((values - mean(values)[:, None]).square()).sqrt()
    if pooling == "max":
        largest = values.masked_fill(counted == 0, -torch.inf).amax(1)
        return torch.where(counted.sum(1) > 0, largest, torch.zeros_like(largest))
    raise unknown("pooling", pooling, get_args(Pooling))
