"""Hooks that are there during one forward pass only."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch import nn


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
