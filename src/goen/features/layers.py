"""The places in a model where features can be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from goen.batch import Inputs, count_of
from goen.errors import UsageError
from goen.features._calling import (
    batched,
    call_model,
    explained,
    find_logits,
    first_float,
    input_keyword,
    recording,
)
from goen.features.pooling import Layout, find_channels
from goen.features.preprocess import InputPreprocessing, Preprocessing, TappedInputs, prepare
from goen.features.unwrapping import unwrap
from goen.models.ensemble import LogitEnsemble
from goen.models.flip_averaging import FlipAveraged
from goen.models.placement import Example, evaluating, example_inputs, placement
from goen.models.rotated import Rotated
from goen.notebook import html_table


@dataclass(frozen=True)
class LayerInfo:
    """One place where features can be taken.

    Attributes:
        name: as in ``model.named_modules()``.
        kind: the name of its class.
        shape: of its output for one image.
        width: of its pooled features; ``None`` where the layout of a map is ambiguous.
        depth: how many weight matrices (of convolutions, linear layers, attention) had been used
            when its output was ready.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    width: int | None
    depth: int


_AMBIGUOUS = (
    "?: which axis is the channels cannot be seen; such a layer needs a layout "
    "(layout=, --layout): channels_first (most CNNs) or channels_last (Swin)"
)


class LayerTable(list[LayerInfo]):
    """A list of layers that prints as a table."""

    def __str__(self) -> str:
        rows, note = self._rows()
        a, b, c, d, e = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = [f"{r[0]:{a}}  {r[1]:{b}}  {r[2]:{c}}  {r[3]:>{d}}  {r[4]:>{e}}" for r in rows]
        return "\n".join([*lines, *note])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        (columns, *rows), note = self._rows()
        title = f"{len(self)} layers"
        return html_table(title, columns, rows, note="".join(note), right=columns[3:])

    def _rows(self) -> tuple[list[tuple[str, ...]], list[str]]:
        """The names of the columns and the rows, and a note where there is one to make."""
        rows: list[tuple[str, ...]] = [("layer", "kind", "output", "width", "depth")]
        for i in self:
            rows.append((i.name, i.kind, batched(i.shape), str(i.width or "?"), str(i.depth)))
        return rows, [_AMBIGUOUS] if any(info.width is None for info in self) else []


def list_layers(
    model: nn.Module,
    example: Example,
    *,
    logits: str | int | None = None,
    preprocess: Preprocessing | InputPreprocessing | None = None,
    layout: Layout = "auto",
    every: bool = False,
    inputs: TappedInputs | Literal["auto"] = "auto",
) -> LayerTable:
    """The places where features can be taken, in the order in which they are ready.

    The model is run once on the example (images, a shape ``(C, H, W)``, or whatever it takes:
    tensors, a tuple or a dict of them) in evaluation mode and left as it was found. Of a network of
    goen's that averages over flips or over networks, the layers are those of one network. With
    ``every``,
    all modules are listed that are called once and give a float tensor of 2 to 5 dimensions, the
    first of them the images. Else only those worth a look:

    - Of modules around each other with the same output, the outermost; not the logits (``logits``
      is their key, attribute or index in the model's output, if that is ambiguous), nor those of
      each token or of heads whose mean they are.
    - Nothing inside a block. A block is a module with parts, no plain ``Sequential``, of a class
      that the model has more than once (a residual block, a transformer layer).
    - Of a layer and the norm, activation or dropout that is applied to its output alone, the last.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
        >>> list_layers(model, (3, 8, 8))
        layer  kind     output        width  depth
        1      ReLU     (N, 8, 6, 6)      8      1
        2      Flatten  (N, 288)        288      1
    """
    model = _one_pass(unwrap(model))
    calls, whole, x = _watch(model, example, preprocess, inputs)
    given = tuple(x.shape) if isinstance(x, Tensor) else ()
    if not every:
        calls = _worth_a_look(model, calls, whole, logits)
    table = LayerTable()
    for call in calls:
        shape = tuple(call.gives.shape)
        axis = find_channels(model, call.name, shape, given, layout)
        width = None if axis is None else shape[axis]
        kind = type(call.module).__name__
        table.append(LayerInfo(call.name, kind, shape[1:], width, call.depth))
    return table


def _one_pass(model: nn.Module) -> nn.Module:
    """The network whose layers are called once: of the networks of an ensemble, the first."""
    if isinstance(model, FlipAveraged | Rotated):
        return _one_pass(model.network)
    return model.members[0] if isinstance(model, LogitEnsemble) else model


def accepts_images(
    model: nn.Module, shape: tuple[int, int, int], preprocess: Preprocessing | None
) -> bool:
    """Whether the model can be run on two images of this shape ``(C, H, W)``.

    Example:
        >>> [accepts_images(nn.Conv2d(1, 4, 3), (n, 8, 8), None) for n in (1, 3)]
        [True, False]
    """
    model = unwrap(model)
    with evaluating(model), torch.no_grad():
        try:
            x = prepare(example_inputs(shape, model), preprocess, placement(model)[1], "images")
            call_model(model, x, input_keyword(model))
        except Exception:  # a model's own code may raise anything
            return False
    return True


@dataclass(frozen=True)
class _Call:
    """A module that was called once: what it was given first, what it gave, and its depth."""

    name: str
    module: nn.Module
    takes: Any
    gives: Tensor
    depth: int

    @property
    def matrices(self) -> int:
        """How many weight matrices it has."""
        return sum(parameter.ndim > 1 for parameter in self.module.parameters())


def _watch(
    model: nn.Module,
    example: Example,
    preprocess: Preprocessing | InputPreprocessing | None,
    inputs: TappedInputs | Literal["auto"],
) -> tuple[list[_Call], Any, Inputs]:
    """Every layer that can be read in one forward pass, the model's own output, its input."""
    modules = {
        name: module
        for name, module in model.named_modules()
        if name and not isinstance(module, torch.jit.ScriptModule)  # these allow no hooks
    }
    matrices: set[int] = set()
    recorded: list[tuple[str, Any, Any, int]] = []

    def record(name: str, inputs: Any, output: Any) -> None:
        used = (parameter for parameter in modules[name].parameters() if parameter.ndim > 1)
        matrices.update(map(id, used))
        recorded.append((name, inputs[0] if inputs else None, first_float(output), len(matrices)))

    with evaluating(model), torch.no_grad():
        x = prepare(example_inputs(example, model), preprocess, placement(model)[1], inputs)
        keyword = input_keyword(model) if isinstance(x, Tensor) else None
        with recording(modules, record), explained(x):
            whole = call_model(model, x, keyword)
    names = [name for name, *_ in recorded]
    calls = [
        _Call(name, modules[name], takes, gives, depth)
        for name, takes, gives, depth in recorded
        if names.count(name) == 1
        and gives is not None
        and 2 <= gives.ndim <= 5
        and gives.shape[0] == count_of(x)
    ]
    return calls, whole, x


def _worth_a_look(
    model: nn.Module, calls: list[_Call], whole: Any, where: str | int | None
) -> list[_Call]:
    """See ``list_layers``."""
    try:
        logits = find_logits(whole, where, len(calls[0].gives)) if calls else None
    except UsageError:
        logits = None
    kinds = [type(module) for module in model.modules()]
    plain = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    blocks = [
        call.name + "."
        for call in calls
        if any(call.module.children())
        and type(call.module) not in plain
        and kinds.count(type(call.module)) > 1
    ]
    seen = [call for call in calls if not call.name.startswith(tuple(blocks))]
    kept = []
    deepest = max((call.depth for call in calls), default=0)
    for index, call in enumerate(seen):
        if logits is not None and call.depth == deepest and _classifies_tokens(call, logits):
            continue
        around = [c.gives for c in calls if call.name.startswith(c.name + ".")]
        if any(call.gives is gives for gives in [*around, logits]):
            continue
        if _is_leaf(call) and any(_finishes(later, call) for later in seen[index + 1 :]):
            continue
        kept.append(call)
    return kept if logits is None else _without_heads(kept, calls, logits)


def _without_heads(kept: list[_Call], calls: list[_Call], logits: Tensor) -> list[_Call]:
    """Without the layers at the end that classify.

    These are the logits before they lose axes of size 1 (a convolution as the classifier) and, of a
    model whose logits are no layer's, those that it computes them from (the heads of a distilled
    transformer, whose mean it takes).
    """
    is_found = any(call.gives is logits and _is_leaf(call) and call.matrices for call in calls)
    while len(kept) > 1:
        last = kept[-1]
        values = last.gives.flatten(1)
        if values.shape != logits.shape or not last.matrices:
            break
        is_logits = torch.equal(values, logits)
        if is_found and not is_logits:
            break
        is_found = is_found or is_logits
        kept = kept[:-1]
    return kept


def _classifies_tokens(call: _Call, logits: Tensor) -> bool:
    """Whether a layer gives logits for each token, of which the model takes some (GPT-2)."""
    module = call.module
    each = isinstance(module, nn.Linear) and module.out_features == logits.shape[1]
    return each and call.gives.ndim > 2


def _is_leaf(call: _Call) -> bool:
    return not any(call.module.children())


def _finishes(later: _Call, call: _Call) -> bool:
    """Whether ``later`` is a norm, activation or dropout of ``call``: no matrix, no new shape."""
    return (
        later.takes is call.gives
        and later.gives.shape == call.gives.shape
        and _is_leaf(later)
        and not later.matrices
    )


def choose_layers(table: LayerTable, features: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The layer at half of the depth, and the last: their names.

    A layer's depth is the number of weight matrices that its output depends on; see ``LayerInfo``.
    Half of the depth means nearest to half of the last layer's; of two that are equally near, the
    deeper. Not considered are layers before the first matrix, which are the images themselves, and
    layers with the features of an earlier one, such as an average pooling after the last block.

    Args:
        table: the layers worth a look.
        features: what each of them gives for two images or more, pooled; those left out here are
            not considered.

    Raises:
        UsageError: there is no layer to choose.

    Example:
        >>> table = LayerTable(LayerInfo(n, "Linear", (1,), 1, d) for n, d in [("a", 1), ("b", 2)])
        >>> choose_layers(table, {"a": torch.rand(2, 1), "b": torch.rand(2, 1)})
        ('a', 'b')
    """
    different: list[LayerInfo] = []
    for info in table:
        earlier = (features[other.name] for other in different)
        if info.name in features and not any(
            same_features(features[info.name], f) for f in earlier
        ):
            different.append(info)
    different = [info for info in different if info.depth] or different
    if not different:
        raise UsageError(
            "The model has no layer that goen could choose. Name the layers yourself, layers=...; "
            "goen.list_layers(model, example, every=True) lists all that can be named."
        )
    last = different.pop()
    middle = min(
        different, key=lambda info: (abs(2 * info.depth - last.depth), -info.depth), default=None
    )
    return (last.name,) if middle is None else (middle.name, last.name)


def same_features(one: Tensor, other: Tensor) -> bool:
    """Whether two layers give the same, up to rounding: a mean may be added up in another order."""
    near = 1e-4 * float(one.abs().max())
    return one.shape == other.shape and bool(((one - other).abs() <= near).all())
