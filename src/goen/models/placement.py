"""Where a model is, what it computes in, and evaluation mode that leaves no trace."""

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import chain
from threading import Lock
from typing import Any, TypeAlias, TypeGuard, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from goen.batch import Inputs, map_parts
from goen.errors import UsageError

Example: TypeAlias = Inputs | NDArray[Any] | Sequence[int]
"""A batch of what a model takes, as tensors or arrays; or the shape ``(C, H, W)`` of images."""

# Each part that is in use: how many use it, and the mode it was in before the first.
_in_use: MutableMapping[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
_lock = Lock()
# Where the caller's new tensors are, while goen's own are on the CPU.
_default: ContextVar[torch.device | None] = ContextVar("default device", default=None)
# The devices that autocast may be on for.
_CASTING = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each part in the mode it was in.

    Of several threads the last to leave restores it: a batch norm put back into training mode under
    another thread's batch would learn from it.
    """
    parts = list(network.modules())
    with _lock:
        # A network that is in evaluation mode, and that nobody will put back into another, needs
        # nothing; to enter each part would take longer than a light network takes for an image.
        ready = not _in_use and not any(part.training for part in parts)
        for part in () if ready else parts:
            users, mode = _in_use.get(part, (0, part.training))
            _in_use[part] = (users + 1, mode)
        if not ready:
            network.eval()
    try:
        yield
    finally:
        with _lock:
            for part in parts:
                if ready and part.training and part not in _in_use:
                    part.training = False  # as it was found, even if its own forward changed it
                elif not ready:
                    users, mode = _in_use.pop(part)
                    if users > 1:
                        _in_use[part] = (users - 1, mode)
                    else:
                        part.training = mode


@contextmanager
def full_precision() -> Iterator[None]:
    """Turn autocast off, if the caller's thread has it on, and on again afterwards.

    Under autocast distances would be computed in 16 bits, and a gate would be compared with
    held-out scores that were computed otherwise. New tensors are on the CPU, wherever the caller
    has them (``torch.set_default_device``); those of a user's own model are in ``as_called``.
    """
    with ExitStack() as stack:
        for kind in _CASTING:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        default = torch.get_default_device()
        if default.type != "cpu":
            stack.enter_context(torch.device("cpu"))
            stack.callback(_default.reset, _default.set(default))
        yield


def as_called() -> AbstractContextManager[object]:
    """Within ``full_precision``: new tensors where the caller has them, for the caller's model."""
    default = None if torch.compiler.is_compiling() else _default.get()
    return nullcontext() if default is None else default


def find_device(name: str) -> torch.device:
    """The device of this name, such as ``cpu`` or ``cuda:1``; ``auto`` is CUDA if it is available.

    Raises:
        UsageError: torch does not know it, or cannot use it on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add(1).cpu()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        here = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        here += ["mps"] if torch.backends.mps.is_available() else []
        raise UsageError(
            f"There is no device {name!r} on this machine. Available: {', '.join(here)}."
        ) from error
    return device


def placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the model is and what it computes in: CPU and float32 if it has no tensors.

    Example:
        >>> placement(nn.Linear(2, 2).bfloat16()), placement(nn.ReLU())
        ((device(type='cpu'), torch.bfloat16), (device(type='cpu'), torch.float32))
    """
    device = None
    for tensor in chain(model.parameters(), model.buffers()):
        device = device or tensor.device
        if tensor.is_floating_point():  # nearly always the first: the others need not be listed
            return device, tensor.dtype
    return device or torch.device("cpu"), torch.float32


def require_values(model: nn.Module) -> None:
    """Raise a UsageError if a weight is on torch's meta device, where it has a shape only."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise UsageError(
                f"The model's {name} is on torch's meta device, where weights have no values. "
                "Build the model on the CPU, and load its weights before you give it to goen."
            )


def example_inputs(example: Example, model: nn.Module) -> Inputs:
    """The example as a batch on the model's device; a shape becomes two images of noise."""
    device = placement(model)[0]
    if isinstance(example, np.ndarray):
        return torch.as_tensor(example, device=device)
    if not _is_shape(example):
        # The type checker cannot tell that what is no shape is a batch.
        return map_parts(lambda part: torch.as_tensor(part, device=device), cast(Inputs, example))
    sizes = tuple(example)
    sizes = (2, *sizes) if len(sizes) == 3 else sizes
    # Not black: layers that differ may give the same for an image without anything in it.
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, sizes, dtype=torch.uint8, generator=generator).to(device)


def _is_shape(example: Example) -> TypeGuard[Sequence[int]]:
    if isinstance(example, (Tensor, np.ndarray, dict)):
        return False
    return all(isinstance(size, int) for size in example)
