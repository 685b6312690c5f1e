"""How a model is called with a batch of inputs, and what it and its layers return."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn

from goen.batch import Inputs, parts_of
from goen.errors import GoenError, UsageError
from goen.models.placement import as_called

# What the models of Hugging Face call their images.
_PIXELS = "pixel_values"
# What models raise for inputs of another shape.
_REFUSALS = (
    ArithmeticError,
    AssertionError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_ADVICE = (
    " Images need the size and the channels that the model was trained on: resize them (--size), "
    "or let preprocess do it."
)
_POSITIONAL = (
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.VAR_POSITIONAL,
)


def call_model(model: nn.Module, inputs: Inputs, keyword: str | None) -> Any:
    """The model's output: for one tensor, a tuple as its arguments, or a dict as keywords.

    Args:
        model: to call.
        inputs: on its device.
        keyword: the name of one tensor; see ``input_keyword``.
    """
    with as_called():
        if isinstance(inputs, dict):
            return model(**inputs)
        if isinstance(inputs, Tensor):
            return model(inputs) if keyword is None else model(**{keyword: inputs})
        return model(*inputs)


@contextmanager
def explained(inputs: Inputs) -> Iterator[None]:
    """A sentence in place of the errors of a model that cannot take inputs of this shape."""
    try:
        yield
    except (GoenError, torch.OutOfMemoryError):
        raise
    except _REFUSALS as error:
        shapes = {name: tuple(part.shape) for name, part in parts_of(inputs).items()}
        shown = ", ".join(f"{name} {shape}".strip() for name, shape in shapes.items())
        reason = f"{type(error).__name__}: {error}".removesuffix(".")
        advice = "" if list(shapes) != [""] or len(shapes[""]) != 4 else _ADVICE
        raise UsageError(
            f"The model does not take inputs of shape {shown}: {reason}.{advice}"
        ) from error


def input_keyword(model: nn.Module) -> str | None:
    """The name under which the model takes its inputs; ``None`` if it takes them without a name.

    An argument called ``pixel_values`` is for the images, wherever it stands. Else the inputs are
    the first argument, or of a model that takes keywords only, the only one (the only one
    required).

    Raises:
        UsageError: the model cannot be called with one tensor alone.
    """
    try:
        call = signature(model.forward)
    except (TypeError, ValueError):  # something without a signature, such as a function in C
        return None
    arguments = call.parameters
    keyword = _PIXELS if _PIXELS in arguments else None
    if not keyword and not any(argument.kind in _POSITIONAL for argument in arguments.values()):
        named = [name for name, a in arguments.items() if a.kind is Parameter.KEYWORD_ONLY]
        required = [name for name in named if arguments[name].default is Parameter.empty]
        candidates = required or named
        keyword = candidates[0] if len(candidates) == 1 else None
    try:
        call.bind(None) if keyword is None else call.bind(**{keyword: None})
    except TypeError as error:
        raise UsageError(
            f"The forward of {type(model).__name__} cannot be called with one batch of images: "
            f"{error}. Wrap the model in one whose forward(x) calls it with all that it needs, or "
            "give its inputs as a dict by their names."
        ) from error
    return keyword


@contextmanager
def recording(
    modules: Mapping[str, nn.Module], record: Callable[[str, Any, Any], None]
) -> Iterator[None]:
    """``record(name, inputs, output)`` at every call of these modules by this thread."""
    me = get_ident()

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def called(_: nn.Module, inputs: Any, output: Any) -> None:
            if get_ident() == me:
                record(name, inputs, output)

        return called

    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_hook(hook(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_float(output: Any) -> Tensor | None:
    parts = [output] if isinstance(output, Tensor) else _entries(output).values()
    return next((part for part in parts if _is_float(part)), None)


def find_logits(output: Any, where: str | int | None, count: int) -> Tensor:
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
            f"{describe_output(output)}. Name the key, attribute or index of the logits in it."
        )
    if logits.shape[1] < 2:
        raise UsageError(
            "The model outputs one logit per image; goen needs one per class. For two classes "
            "return torch.cat([torch.zeros_like(logit), logit], 1)."
        )
    return cast(Tensor, logits)


def describe_output(output: Any) -> str:
    if isinstance(output, Tensor) and output.is_nested:
        return "a nested tensor"
    if isinstance(output, Tensor):
        return f"{tuple(output.shape)} {str(output.dtype).removeprefix('torch.')}"
    parts = [
        f"{name!r} {describe_output(part) if isinstance(part, Tensor) else type(part).__name__}"
        for name, part in _entries(output).items()
    ]
    return f"{type(output).__name__} with {', '.join(parts) or 'nothing in it'}"


def batched(shape: Sequence[int]) -> str:
    return f"({', '.join(['N', *map(str, shape)])})"


def full(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


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


def _is_float(value: Any) -> bool:
    """Whether this is a tensor of floats; a nested one, of rows of many lengths, has no shape."""
    return isinstance(value, Tensor) and value.is_floating_point() and not value.is_nested
