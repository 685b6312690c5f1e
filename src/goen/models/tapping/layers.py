"""The places in a model where features can be taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from goen.errors import UsageError
from goen.models.placement import evaluating, example_images, placement
from goen.models.tapping._calling import image_keyword
from goen.models.tapping._hooks import listening
from goen.models.tapping._returned import batched, find_logits, first_float
from goen.models.tapping.pooling import Layout, channel_axis
from goen.models.tapping.preprocess import Preprocessing, prepare_images
from goen.models.unwrapping import unwrap


@dataclass(frozen=True)
class LayerInfo:
    """One place where features can be taken.

    Attributes:
        name: as in ``model.named_modules()``.
        kind: the name of its class.
        shape: of its output for one image.
        width: of its pooled features; ``None`` where the layout of a map is ambiguous.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    width: int | None


class LayerTable(list[LayerInfo]):
    """A list of layers that prints as a table."""

    def __str__(self) -> str:
        rows = [("layer", "kind", "output", "width")]
        rows += [(i.name, i.kind, batched(i.shape), str(i.width or "?")) for i in self]
        a, b, c, d = (max(len(row[column]) for row in rows) for column in range(4))
        return "\n".join(f"{r[0]:{a}}  {r[1]:{b}}  {r[2]:{c}}  {r[3]:>{d}}" for r in rows)

    __repr__ = __str__


def layers(
    model: nn.Module,
    example: Tensor | Sequence[int],
    *,
    preprocess: Preprocessing | None = None,
    layout: Layout = "auto",
    every: bool = False,
) -> LayerTable:
    """The places where features can be taken, in the order in which they are ready.

    The model is run once on the example (images, or a shape ``(C, H, W)``) in evaluation mode and
    left as it was found. With ``every``, all modules are listed that are called once and give a
    float tensor of 2 to 4 dimensions, the first of them the images. Else only those worth a look:

    - Of modules around each other with the same output, the outermost; not the logits.
    - Nothing inside a block. A block is a module with parts, no plain ``Sequential``, of a class
      that the model has more than once (a residual block, a transformer layer).
    - Of a layer and the norm, activation or dropout that is applied to its output alone, the last.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
        >>> layers(model, (3, 8, 8))
        layer  kind     output        width
        1      ReLU     (N, 8, 6, 6)      8
        2      Flatten  (N, 288)        288
    """
    model = unwrap(model)
    calls, whole, x = _watch(model, example, preprocess)
    if not every:
        calls = _worth_a_look(model, calls, whole)
    table = LayerTable()
    for call in calls:
        shape = tuple(call.gives.shape)
        axis: int | None = len(shape) - 1
        if len(shape) == 4:
            axis = channel_axis(call.module, shape, x.shape, layout)
        width = None if axis is None else shape[axis]
        table.append(LayerInfo(call.name, type(call.module).__name__, shape[1:], width))
    return table


@dataclass(frozen=True)
class _Call:
    """A module that was called once: what it was given first and what it gave."""

    name: str
    module: nn.Module
    takes: Any
    gives: Tensor


def _watch(
    model: nn.Module, example: Tensor | Sequence[int], preprocess: Preprocessing | None
) -> tuple[list[_Call], Any, Tensor]:
    """Every layer that can be tapped in one forward pass, the model's own output, its input."""
    modules = {
        name: module
        for name, module in model.named_modules()
        if name and not isinstance(module, torch.jit.ScriptModule)  # these allow no hooks
    }
    keyword = image_keyword(model)
    heard: list[tuple[str, Any, Any]] = []

    def hear(name: str, inputs: Any, output: Any) -> None:
        heard.append((name, inputs[0] if inputs else None, first_float(output)))

    with evaluating(model), torch.no_grad():
        x = prepare_images(example_images(example, model), preprocess, placement(model)[1])
        with listening(modules, hear):
            whole = model(x) if keyword is None else model(**{keyword: x})
    names = [name for name, _, _ in heard]
    calls = [
        _Call(name, modules[name], takes, gives)
        for name, takes, gives in heard
        if names.count(name) == 1
        and gives is not None
        and gives.ndim in (2, 3, 4)
        and gives.shape[0] == x.shape[0]
    ]
    return calls, whole, x


def _worth_a_look(model: nn.Module, calls: list[_Call], whole: Any) -> list[_Call]:
    """See ``layers``."""
    try:
        logits = find_logits(whole, None, len(calls[0].gives)) if calls else None
    except UsageError:
        logits = None
    kinds = [type(module) for module in model.modules()]
    plain = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    blocks = [
        call.name + "."
        for call in calls
        if any(call.module.children())
        and not isinstance(call.module, plain)
        and kinds.count(type(call.module)) > 1
    ]
    seen = [call for call in calls if not call.name.startswith(tuple(blocks))]
    kept = []
    for index, call in enumerate(seen):
        around = [c.gives for c in calls if call.name.startswith(c.name + ".")]
        if any(call.gives is gives for gives in [*around, logits]):
            continue
        if _is_leaf(call) and any(_finishes(later, call) for later in seen[index + 1 :]):
            continue
        kept.append(call)
    return kept


def _is_leaf(call: _Call) -> bool:
    return not any(call.module.children())


def _finishes(later: _Call, call: _Call) -> bool:
    """Whether ``later`` is a norm, activation or dropout of ``call``: no matrix, no new shape."""
    matrix = any(parameter.ndim > 1 for parameter in later.module.parameters())
    return (
        _is_leaf(later)
        and not matrix
        and later.takes is call.gives
        and later.gives.shape == call.gives.shape
    )


def suggest_layers(table: LayerTable) -> tuple[str, ...]:
    """The last layer of the middle scale, and the last of all: where the output's size changes."""
    usable = [info for info in table if info.width is not None]
    ends = [
        info.name
        for info, after in zip(usable, [*usable[1:], None], strict=True)
        if after is None or after.shape[1:] != info.shape[1:]
    ]
    chosen = [ends[(len(ends) - 1) // 2], ends[-1]] if ends else ["NAME"]
    return tuple(dict.fromkeys(chosen))
