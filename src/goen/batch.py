"""A batch of inputs as a model takes it: a tensor, or a tuple or dict of tensors."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""Tensors whose first axis is the inputs of the batch."""
LABEL_NAMES = ("labels", "label")
"""What loaders and files call labels among arrays by name."""


def parts_of(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors by their names: keys, positions, or no name where there is one only.

    Example:
        >>> [*parts_of(torch.zeros(1))], [*parts_of((torch.zeros(1), torch.zeros(1)))]
        ([''], ['0', '1'])
    """
    if isinstance(inputs, Tensor):
        return {"": inputs}
    if isinstance(inputs, dict):
        return inputs
    return {str(number): part for number, part in enumerate(inputs)}


def map_parts(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same form with the function applied to each tensor."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {name: function(part) for name, part in inputs.items()}
    return tuple(map(function, inputs))


def count_of(inputs: Inputs) -> int:
    """How many inputs the batch has."""
    # Not len: under torch.export it would make the size of the batch a constant.
    return next(iter(parts_of(inputs).values())).shape[0]


def take(inputs: Inputs, rows: slice) -> Inputs:
    """The inputs of these rows.

    Example:
        >>> take({"x": torch.arange(5)}, slice(1, 3))
        {'x': tensor([1, 2])}
    """
    return map_parts(lambda part: part[rows], inputs)


def join_batches(batches: Sequence[Inputs]) -> Inputs:
    """Batches of the same form, one after the other; at least one.

    Example:
        >>> join_batches([(torch.zeros(1), torch.ones(1)), (torch.zeros(2), torch.ones(2))])
        (tensor([0., 0., 0.]), tensor([1., 1., 1.]))
    """
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat([batch for batch in batches if isinstance(batch, Tensor)])
    joined = {name: torch.cat([parts_of(b)[name] for b in batches]) for name in parts_of(first)}
    return joined if isinstance(first, dict) else tuple(joined.values())
