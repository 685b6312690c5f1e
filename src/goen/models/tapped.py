"""Any classifier as a network that gives ``Outputs``: its logits, and its layers by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from threading import get_ident
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from goen.errors import UsageError, unknown
from goen.models.preprocess import Preprocessing, prepare
from goen.outputs import Outputs

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

# Lets torch.export return Outputs from a program.
torch.export.register_dataclass(Outputs, serialized_type_name="goen.outputs.Outputs")


class Tapped(nn.Module):
    """Images ``(N, C, H, W)`` to ``Outputs``: the model's logits and the pooled layers.

    Images are uint8, or floats that say the same in [0, 1], on the model's device. The model is
    not changed: hooks are there during a forward pass only, also when it ends in an error, and
    each thread hears its own pass only. Logits and features are float32 (float64 of a float64
    model), whatever the model computes in. Put it in evaluation mode, as ``goen.extract`` does.

    A layer's output is pooled to one row per image, at the moment it is made, before anything
    can change it in place:

    - ``(N, D)`` is taken as it is.
    - Tokens ``(N, T, D)`` are averaged, or with ``tokens="class"`` the first is taken. The mean is
      the default because it is right for every model with tokens; the first token of a model
      that has no class token is one corner of the image.
    - Maps ``(N, C, H, W)`` or ``(N, H, W, C)`` are averaged over space. Convolutions and the like
      put the channels first. Of another layer the shape says it when the images are square and
      just two of the three sizes are equal; else ``layout`` has to.
    - Of a tuple, a dict or an object (attention with its weights) the first float tensor counts.

    Args:
        model: maps a batch of images to logits, or to something that holds them.
        layers: names as in ``model.named_modules()``; ``layers(model, example)`` lists them. Each
            must be called exactly once in a forward pass.
        logits: where they are in the model's output: a key, an attribute or an index. Not needed
            when the output is a tensor, or holds only one float tensor of two dimensions.
        preprocess: a ``Preprocess``, or a function of float images in [0, 1]. Without it, images in
            [0, 1] go in as they are.
        tokens: ``mean`` or ``class``, see above.
        layout: of maps: ``auto``, ``channels_first`` or ``channels_last``, see above.
        example: images, or a shape ``(C, H, W)``. With it everything is tried at once, and the
            error for a wrong name gives shapes.

    Raises:
        UsageError: no such layer, a layer that is called never or twice, logits that are not
            found, images that cannot be meant.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
        >>> outputs = Tapped(model, ["1"])(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
        >>> outputs.logits.shape, outputs.features["1"].shape
        (torch.Size([2, 5]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str],
        *,
        logits: str | int | None = None,
        preprocess: Preprocessing | None = None,
        tokens: Tokens = "mean",
        layout: Layout = "auto",
        example: Tensor | Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.layers = (layers,) if isinstance(layers, str) else tuple(layers)
        self.logits = logits
        self.preprocess = preprocess
        self.tokens = tokens
        self.layout = layout
        self.training = model.training
        if tokens not in get_args(Tokens):
            raise unknown("tokens", tokens, get_args(Tokens))
        if layout not in get_args(Layout):
            raise unknown("layout", layout, get_args(Layout))
        if len(set(self.layers)) != len(self.layers):
            raise UsageError(f"Each layer is named once, got {', '.join(self.layers)}.")
        known = dict(model.named_modules(remove_duplicate=False))
        for name in self.layers:
            if not name or name not in known:
                raise _no_such_layer(name, model, example, preprocess)
        if example is not None:
            with evaluating(self), torch.no_grad():
                self(_images(example, model))

    def forward(self, images: Tensor) -> Outputs:
        x = prepare(images, self.preprocess, placement(self.model)[1])
        heard: dict[str, list[Tensor]] = {name: [] for name in self.layers}

        def hear(name: str, _: Any, output: Any) -> None:
            heard[name].append(self._pooled(name, output, x))

        modules = {name: self.model.get_submodule(name) for name in self.layers}
        with _listening(modules, hear):
            output = self.model(x)
        for name, calls in heard.items():
            if len(calls) != 1:
                raise _not_once(name, len(calls))
        features = {name: calls[0] for name, calls in heard.items()}
        return Outputs(_full(_find_logits(output, self.logits, x.shape[0])), features)

    def _pooled(self, name: str, output: Any, x: Tensor) -> Tensor:
        found = _first_float(output)
        if found is None or found.ndim not in (2, 3, 4) or found.shape[0] != x.shape[0]:
            raise UsageError(
                f"Layer {name!r} gives {_describe(output)} for {x.shape[0]} images; a layer to tap "
                "gives a float tensor of 2 to 4 dimensions, the first of them the images. "
                "goen.layers(model, example) lists those that do."
            )
        values = _full(found)
        if values.ndim == 4:
            module = self.model.get_submodule(name)
            axis = _channel_axis(module, found.shape, x.shape, self.layout)
            if axis is None:
                raise UsageError(
                    f"Layer {name!r} gives {_batched(found.shape[1:])}: its shape does not say "
                    "which axis is the channels. Give layout='channels_first' (most CNNs) or "
                    "'channels_last' (Swin)."
                )
            return values.mean((2, 3) if axis == 1 else (1, 2))
        if values.ndim == 3 and self.tokens == "mean":
            return values.mean(1)
        # A copy: what comes after may work in place.
        return (values[:, 0] if values.ndim == 3 else values).clone()


@dataclass(frozen=True)
class LayerInfo:
    """One place where features can be taken.

    Attributes:
        name: as in ``model.named_modules()``.
        kind: the name of its class.
        shape: of its output for one image.
        width: of its pooled features; ``None`` where a map's layout has to be said.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    width: int | None


class LayerTable(list[LayerInfo]):
    """A list of layers that prints as a table."""

    def __str__(self) -> str:
        rows = [("layer", "kind", "output", "width")]
        rows += [(i.name, i.kind, _batched(i.shape), str(i.width or "?")) for i in self]
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
    calls, whole, x = _watch(model, example, preprocess)
    if not every:
        calls = _worth_a_look(model, calls, whole)
    table = LayerTable()
    for call in calls:
        shape = tuple(call.gives.shape)
        axis: int | None = len(shape) - 1
        if len(shape) == 4:
            axis = _channel_axis(call.module, shape, x.shape, layout)
        width = None if axis is None else shape[axis]
        table.append(LayerInfo(call.name, type(call.module).__name__, shape[1:], width))
    return table


def check_deterministic(network: nn.Module, images: Tensor, *, alone: int = 4) -> None:
    """Passes when an image's outputs depend on nothing but the image.

    In evaluation mode the network sees the batch twice, then in reverse, then the first few images
    one by one. Outputs may differ by a thousandth of the largest value (more in half precision):
    other batch sizes add up in another order.

    Args:
        network: gives ``Outputs``.
        images: two or more, different from each other.
        alone: how many images are tried one by one.

    Raises:
        UsageError: they do not, and what to do.

    Example:
        >>> check_deterministic(Tapped(nn.Flatten(), []), torch.rand(3, 1, 2, 2))
    """
    if len(images) < 2:
        raise UsageError(f"Two images or more show whether outputs repeat, got {len(images)}.")
    with evaluating(network), torch.no_grad():
        first = network(images)
        again, backwards = network(images), network(images.flip(0))
        try:
            single = Outputs.concatenate(network(image[None]) for image in images[:alone])
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"The network takes a batch of {len(images)} but not one image alone: {error}"
            ) from error
    tolerance = max(1e-3, 16 * torch.finfo(placement(network)[1]).eps)
    for name, values in _parts(first).items():
        if not bool(torch.isfinite(values).all()):
            raise UsageError(f"The network's {name} hold NaN or infinity. Check its weights.")
    if where := _differing(first, again, tolerance):
        raise UsageError(
            f"The network is not deterministic in evaluation mode: its {where} changed when it saw "
            "the same images again. Look for dropout or noise that ignores model.eval(), such as "
            "functional dropout with training=True, and for random preprocessing."
        )
    turned = torch.arange(len(images) - 1, -1, -1, device=first.logits.device)
    where = _differing(first, backwards[turned], tolerance)
    if where := where or _differing(first[: len(single)], single, tolerance):
        raise UsageError(
            f"An image's outputs depend on the other images of its batch: its {where} changed in "
            "other company. Look for batch norm without running statistics (or frozen in training "
            "mode), and for normalisation over the batch."
        )


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each part in the mode it was in."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the model is and what it computes in: CPU and float32 if nothing in it says.

    Example:
        >>> placement(nn.Linear(2, 2).bfloat16()), placement(nn.ReLU())
        ((device(type='cpu'), torch.bfloat16), (device(type='cpu'), torch.float32))
    """
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    floats = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
    return device, next(floats, torch.float32)


def _parts(outputs: Outputs) -> dict[str, Tensor]:
    named = {f"features {name!r}": values for name, values in outputs.features.items()}
    return {"logits": outputs.logits, **named}


def _differing(one: Outputs, other: Outputs, tolerance: float) -> str:
    """The first part in which two outputs are not the same."""
    others = _parts(other)
    for name, values in _parts(one).items():
        difference = (values - others[name]).abs().max()
        if not bool(difference <= tolerance * values.abs().max()):
            return name
    return ""


@contextmanager
def _listening(
    modules: Mapping[str, nn.Module], hear: Callable[[str, Any, Any], None]
) -> Iterator[None]:
    """``hear(name, inputs, output)`` at every call of these modules by this thread."""
    me = get_ident()

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def called(_: nn.Module, inputs: Any, output: Any) -> None:
            if get_ident() == me:
                hear(name, inputs, output)

        return called

    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_hook(hook(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


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
    modules = {name: module for name, module in model.named_modules() if name}
    heard: list[tuple[str, Any, Any]] = []

    def hear(name: str, inputs: Any, output: Any) -> None:
        heard.append((name, inputs[0] if inputs else None, _first_float(output)))

    with evaluating(model), torch.no_grad():
        x = prepare(_images(example, model), preprocess, placement(model)[1])
        with _listening(modules, hear):
            whole = model(x)
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
        logits = _find_logits(whole, None, len(calls[0].gives)) if calls else None
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


def _images(example: Tensor | Sequence[int], model: nn.Module) -> Tensor:
    """The example as a batch on the model's device; a shape becomes two black images."""
    if isinstance(example, Tensor):
        return example.to(placement(model)[0])
    sizes = tuple(example)
    sizes = (2, *sizes) if len(sizes) == 3 else sizes
    return torch.zeros(sizes, dtype=torch.uint8, device=placement(model)[0])


def _channel_axis(
    module: nn.Module, shape: Sequence[int], images: Sequence[int], layout: Layout
) -> int | None:
    """1 or 3, or ``None`` when nothing says it."""
    if layout == "channels_first" or isinstance(module, CHANNELS_FIRST):
        return 1
    if layout == "channels_last":
        return 3
    # Square images have square maps. Of others nothing is sure: borders and strides differ.
    if len(images) != 4 or images[2] != images[3]:
        return None
    first, last = shape[2] == shape[3], shape[1] == shape[2]
    return None if first == last else (1 if first else 3)


def _full(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _entries(output: Any) -> dict[str | int, Any]:
    """What an output of several parts holds, by key, index or attribute."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple) and hasattr(output, "_asdict"):
        return dict(output._asdict())
    if isinstance(output, (tuple, list)):
        return dict(enumerate(output))
    if is_dataclass(output):
        return {field.name: getattr(output, field.name) for field in fields(output)}
    return dict(getattr(output, "__dict__", {}))


def _first_float(output: Any) -> Tensor | None:
    parts = [output] if isinstance(output, Tensor) else _entries(output).values()
    return next((part for part in parts if _is_float(part)), None)


def _find_logits(output: Any, where: str | int | None, count: int) -> Tensor:
    """The logits ``(N, C)`` in a model's output."""
    if isinstance(output, Tensor) or where is None:
        parts = {"": output} if isinstance(output, Tensor) else _entries(output)
        found = [part for part in parts.values() if _is_float(part) and part.ndim == 2]
    elif isinstance(where, str) and not isinstance(output, Mapping):
        found = [getattr(output, where, None)]
    else:
        try:
            found = [output[where]]
        except (KeyError, IndexError, TypeError):
            found = []
    logits: Any = found[0] if len(found) == 1 else None
    if not _is_float(logits) or logits.ndim != 2 or logits.shape[0] != count:
        asked = "" if where is None else f" at {where!r}"
        raise UsageError(
            f"No logits (N, classes){asked} in what the model returns for {count} images: "
            f"{_describe(output)}. Give logits= the key, attribute or index of the one that is."
        )
    if logits.shape[1] < 2:
        raise UsageError(
            "The model gives one logit per image; goen wants one per class. For two classes return "
            "torch.cat([torch.zeros_like(logit), logit], 1)."
        )
    return cast(Tensor, logits)


def _describe(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"{tuple(output.shape)} {str(output.dtype).removeprefix('torch.')}"
    parts = [
        f"{name!r} {_describe(part) if isinstance(part, Tensor) else type(part).__name__}"
        for name, part in _entries(output).items()
    ]
    return f"{type(output).__name__} with {', '.join(parts) or 'nothing in it'}"


def _batched(shape: Sequence[int]) -> str:
    return f"({', '.join(['N', *map(str, shape)])})"


def _not_once(name: str, calls: int) -> UsageError:
    if not calls:
        return UsageError(
            f"Layer {name!r} is not called in the forward pass: the model has it but does not use "
            "it, uses its weights only, or was scripted (then give the model before that). "
            "goen.layers(model, example) lists the layers that are."
        )
    return UsageError(
        f"Layer {name!r} is called {calls} times in the forward pass, so its name does not say "
        "which features are meant. Tap the layer before or around it, or give the model one "
        "module for each call."
    )


def _no_such_layer(
    name: str,
    model: nn.Module,
    example: Tensor | Sequence[int] | None,
    preprocess: Preprocessing | None,
) -> UsageError:
    """The nearest names, with their shapes when an example says them."""
    names = [known for known, _ in model.named_modules(remove_duplicate=False) if known]
    shapes: dict[str, str] = {}
    if example is not None:
        table = layers(model, example, preprocess=preprocess, every=True)
        shapes = {info.name: f" {_batched(info.shape)}" for info in table}
        names = list(shapes)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    shown = near or [known for known in names if "." not in known] or names[:8]
    listed = ", ".join(f"{known!r}{shapes.get(known, '')}" for known in shown)
    hint = f"Did you mean {listed}?" if near else f"It has {listed}."
    return UsageError(
        f"The model has no layer {name!r}. {hint} goen.layers(model, example) lists them with "
        "their shapes."
    )
