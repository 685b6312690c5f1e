"""Weights of float32 that take two bytes each in a file, with nothing lost."""

import torch
from torch import Tensor, nn

from goen.errors import UsageError


def round_to_half(network: nn.Module) -> None:
    """Round the matrices and filters of a network to numbers of half precision, in place.

    They stay float32, and what is computed with them is, but a file needs half as many bytes. What
    a network has one number of per channel (biases, the statistics of batch norms) is left alone:
    it is small, and a variance may be too small for half precision.

    Raises:
        UsageError: a weight is too large for half precision; nothing was changed.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> layer.weight.data = torch.tensor([[0.1]])
        >>> round_to_half(layer)
        >>> layer.weight.item()
        0.0999755859375
    """
    weights = {name: p for name, p in network.named_parameters() if p.ndim > 1}
    with torch.no_grad():
        rounded = {name: parameter.half() for name, parameter in weights.items()}
        for name, values in rounded.items():
            if bool((values.isinf() & weights[name].isfinite()).any()):
                raise UsageError(f"A weight of {name} is too large for half precision.")
        for name, values in rounded.items():
            weights[name].copy_(values)


def as_half(values: Tensor) -> Tensor:
    """In float16 if every one of these float32 is such a number; else as they are."""
    if values.dtype != torch.float32:
        return values
    half = values.half()
    return half if torch.equal(half.float(), values) else values


def from_half(values: Tensor) -> Tensor:
    """What was given to ``as_half``."""
    return values.float() if values.dtype == torch.float16 else values
