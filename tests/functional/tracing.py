"""A function as torch.export traces it, for any number of rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class _Module(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Any:
        return self.function(rows)


def traced(function: Callable[[Tensor], Any], rows: Tensor) -> Callable[[Tensor], Any]:
    """The program of the function; ``rows`` are an example of at least two."""
    axes = ({0: torch.export.Dim("count")},)
    program = torch.export.export(_Module(function), (rows,), dynamic_shapes=axes, strict=False)
    return program.module()
