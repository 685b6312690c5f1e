"""Which axis of a map is its channels."""

from collections.abc import Sequence
from typing import Literal

from torch import nn

Tokens = Literal["mean", "class"]
Layout = Literal["auto", "channels_first", "channels_last"]

# Torch's own layers of which no map is ever (N, H, W, C).
CHANNELS_FIRST = (
    nn.Conv2d,
    nn.BatchNorm2d,
    nn.InstanceNorm2d,
    nn.GroupNorm,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveAvgPool2d,
)


def channel_axis(
    module: nn.Module, shape: Sequence[int], images: Sequence[int], layout: Layout
) -> int | None:
    """1 or 3, or ``None`` when it is ambiguous."""
    if layout == "channels_first" or isinstance(module, CHANNELS_FIRST):
        return 1
    if layout == "channels_last":
        return 3
    # Square images have square maps. Of others nothing is sure: borders and strides differ.
    if len(images) == 4 and images[2] == images[3]:
        first, last = shape[2] == shape[3], shape[1] == shape[2]
        if first != last:
            return 1 if first else 3
    return 1 if _is_convolutional(module) else None


def _is_convolutional(module: nn.Module) -> bool:
    """Whether all weights in a module belong to layers that have their channels first."""
    with_weights = [part for part in module.modules() if [*part.parameters(recurse=False)]]
    return bool(with_weights) and all(isinstance(part, CHANNELS_FIRST) for part in with_weights)
