"""What a module returned: its float tensors and its logits, in whatever they are wrapped."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor

from goen.errors import UsageError


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
