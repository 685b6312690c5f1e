"""Which axis of a layer's output is its channels, and how the others are pooled."""

from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from goen.errors import UsageError, unknown
from goen.models.pooling import Pooling, pool, pool_tokens

Tokens = Literal["mean", "class"]
Layout = Literal["auto", "channels_first", "channels_last"]
Tap = Pooling | Literal["input"]
"""What is taken of a layer: its output, pooled, or the mean of what it is given."""
INPUT: Literal["input"] = "input"

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
# Of outputs with three axes, four, five.
_CONVOLUTIONS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_NORMS = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def find_channels(
    model: nn.Module, layer: str, shape: Sequence[int], images: Sequence[int], layout: Layout
) -> int | None:
    """The axis of the channels of a layer's output; ``None`` when it is ambiguous.

    Args:
        model: the layer's.
        layer: its name in the model.
        shape: of the layer's output.
        images: the shape of what the model was given; empty if that is not one tensor.
        layout: of maps, what the user says about it.
    """
    last = len(shape) - 1
    if last == 1:
        return 1
    if last == 2:  # tokens, unless they come from a convolution over time
        return axis_by_weights(model, layer, shape) or last
    if last == 3:
        axis = channel_axis(model.get_submodule(layer), shape, images, layout)
    else:
        axis = {"channels_first": 1, "channels_last": last, "auto": None}[layout]
    return axis_by_weights(model, layer, shape) if axis is None else axis


def channel_axis(
    module: nn.Module, shape: Sequence[int], images: Sequence[int], layout: Layout
) -> int | None:
    """Of a map with four axes: 1 or 3, or ``None`` when it is ambiguous.

    Args:
        module: gave the map.
        shape: of the map.
        images: the shape of what the model was given.
        layout: what the user says about it.
    """
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


def axis_by_weights(model: nn.Module, layer: str, shape: Sequence[int]) -> int | None:
    """The axis of the channels as the weights in the layer tell, or the nearest before it.

    A convolution or batch norm with as many channels as the second axis has means the second; a
    linear layer, layer norm, embedding or recurrent layer with as many as the last has, the last.
    ``None`` where they fit neither axis or one fits each, and of maps where both have one size.

    Args:
        model: the layer's.
        layer: its name in the model.
        shape: of the layer's output, three axes or more.

    Example:
        >>> model = nn.Sequential(nn.Conv1d(1, 8, 3), nn.ReLU())
        >>> axis_by_weights(model, "1", (2, 8, 20)), axis_by_weights(model, "1", (2, 20, 8))
        (1, None)
    """
    if shape[1] == shape[-1] and len(shape) > 3:
        return None
    modules = dict(model.named_modules())
    inside = {name for name in modules if f"{name}.".startswith(f"{layer}.")}
    found = {axis for name in inside for axis in _axes(modules[name], shape)}
    for name in reversed(list(modules)[: list(modules).index(layer)]):
        if found:
            break
        found = set(_axes(modules[name], shape))
    fitting = found - {0}
    return fitting.pop() if len(fitting) == 1 else None


def _axes(part: nn.Module, shape: Sequence[int]) -> list[int]:
    """Which axis the weights of a module fit, 0 for none; nothing of a module without any."""
    channels, width = _channels(part, len(shape)), _width(part)
    if channels is None and width is None:
        return []
    if channels == shape[1]:
        return [1]
    return [len(shape) - 1 if width == shape[-1] else 0]


def _channels(part: nn.Module, axes: int) -> int | None:
    if isinstance(part, _CONVOLUTIONS[axes]):
        return int(part.out_channels)
    return int(part.num_features) if isinstance(part, _NORMS[axes]) else None


def _width(part: nn.Module) -> int | None:
    if isinstance(part, nn.Linear):
        return part.out_features
    if isinstance(part, nn.LayerNorm):
        return int(part.normalized_shape[-1])
    if isinstance(part, nn.Embedding):
        return part.embedding_dim
    if isinstance(part, nn.RNNBase):
        return part.hidden_size * (2 if part.bidirectional else 1)
    return None


def split_pooling(name: str) -> tuple[str, Tap]:
    """A layer and how it is pooled, written ``LAYER:POOLING``; without a pooling, by the mean.

    ``LAYER:input`` is what the layer is given, in place of its output.

    Raises:
        UsageError: no such pooling.

    Example:
        >>> split_pooling("layer3.0:mean_abs"), split_pooling("layer4"), split_pooling("fc:input")
        (('layer3.0', 'mean_abs'), ('layer4', 'mean'), ('fc', 'input'))
    """
    layer, colon, pooling = name.rpartition(":")
    if not colon:
        return name, "mean"
    if pooling == INPUT:
        return layer, INPUT
    if pooling not in get_args(Pooling):
        raise unknown("pooling", pooling, [*get_args(Pooling), INPUT])
    return layer, cast(Pooling, pooling)


def mask_of_frames(mask: Tensor, frames: int) -> Tensor:
    """A mask of samples ``(N, T)`` as one of the frames that a model makes of them, ``(N, F)``.

    A frame counts if the sample at its middle does.

    Example:
        >>> import torch
        >>> mask_of_frames(torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0, 0]]), 3)
        tensor([[1, 1, 0]])
    """
    middles = (2 * torch.arange(frames, device=mask.device) + 1) * mask.shape[1] // (2 * frames)
    return mask[:, middles]


def pool_output(
    values: Tensor, axis: int, tokens: Tokens, mask: Tensor | None, pooling: Pooling = "mean"
) -> Tensor:
    """One row per input ``(N, C)``, pooled over all axes but the first and the channels.

    Args:
        values: ``(N, ...)``.
        axis: of the channels.
        tokens: of ``(N, T, C)``: all of them, or the first.
        mask: ``(N, T)``, zero at the tokens that only fill up, which are left out.
        pooling: over the axes, or over the tokens.

    Raises:
        UsageError: a pooling other than the mean where there is nothing to pool.

    Example:
        >>> import torch
        >>> values = torch.tensor([[[1.0], [3.0], [9.0]]])
        >>> mask = torch.tensor([[1, 1, 0]])
        >>> pool_output(values, 2, "mean", None), pool_output(values, 2, "mean", mask)
        (tensor([[4.3333]]), tensor([[2.]]))
        >>> pool_output(values, 2, "mean", mask, "max")
        tensor([[3.]])
    """
    has_tokens = values.ndim == 3 and axis == 2
    if values.ndim == 2 or (has_tokens and tokens == "class"):
        if pooling != "mean":
            raise UsageError(
                f"One vector per input has nothing to pool by {pooling}: name the layer without it."
            )
        rows = values if values.ndim == 2 else values[:, 0]
        return rows.clone()  # what comes after may work in place
    if has_tokens and mask is not None and mask.shape == values.shape[:2]:
        return pool_tokens(values, pooling, mask)
    return pool(values, pooling, [other for other in range(1, values.ndim) if other != axis])
