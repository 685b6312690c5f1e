"""One number per channel of a feature map."""

from typing import Literal, get_args

from torch import Tensor

from goen.errors import unknown

Pooling = Literal["mean", "mean_abs", "std", "max"]
"""Over space: the mean, the mean of the absolute values, the standard deviation, the maximum."""


def pool(values: Tensor, pooling: Pooling) -> Tensor:
    """Feature maps ``(N, C, H, W)`` to features ``(N, C)``.

    The standard deviation is that of the map's own values, divided by their number.

    Raises:
        UsageError: no such pooling.

    Example:
        >>> import torch
        >>> values = torch.tensor([-3.0, 1.0]).view(1, 1, 1, 2)
        >>> [pool(values, how).item() for how in ("mean", "mean_abs", "std", "max")]
        [-1.0, 2.0, 2.0, 1.0]
    """
    if pooling == "mean":
        return values.mean((2, 3))
    if pooling == "mean_abs":
        return values.abs().mean((2, 3))
    if pooling == "std":
        return values.var((2, 3), correction=0).sqrt()
    if pooling == "max":
        return values.amax((2, 3))
    raise unknown("pooling", pooling, get_args(Pooling))
