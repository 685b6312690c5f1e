"""How a model is called with a batch of inputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from goen.batch import Inputs, parts_of
from goen.errors import GoenError, UsageError

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
