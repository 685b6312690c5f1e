"""What this processor, with this torch, can compute without dying.

On some processors torch's half-precision kernels end the process with an illegal instruction. No
test can catch that, so each ability is tried once in a process of its own, and the tests marked
``needs("bfloat16 attention")`` are skipped where it is missing.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

# Set to abilities, separated by commas, to let the probe die of them as on such a processor.
SIMULATE = "GOEN_TEST_WITHOUT"
# Holds the answer, for the processes that the tests start.
MISSING = "GOEN_TEST_MISSING"
_HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def _convolve(dtype: torch.dtype) -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        for width in (3, 4, 7, 8, 12, 16, 32):
            kinds = ((1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 4, 1), (3, 1, width))
            for kernel, stride, groups in kinds:
                conv = nn.Conv2d(width, 2 * width, kernel, stride, 1, groups=groups)
                images = torch.rand(2, width, 16, 16).to(dtype, memory_format=layout)
                conv.to(dtype, memory_format=layout)(images)
    nn.Conv2d(3, 32, 32, 32).to(dtype)(torch.rand(2, 3, 224, 224).to(dtype))  # patches


def _attend(dtype: torch.dtype) -> None:
    for width, heads in ((8, 2), (32, 4), (48, 3)):
        tokens = torch.rand(2, 50, width).to(dtype)
        attention = nn.MultiheadAttention(width, heads, batch_first=True).to(dtype)
        layer = nn.TransformerEncoderLayer(width, heads, 64, batch_first=True).to(dtype)
        for training in (True, False):
            attention.train(training)(tokens, tokens, tokens)
            layer.train(training)(tokens)


ABILITIES: dict[str, Callable[[], None]] = {
    f"{name} {kind}": (lambda run=run, dtype=dtype: run(dtype))
    for name, dtype in _HALVES.items()
    for kind, run in (("convolution", _convolve), ("attention", _attend))
}


def missing_abilities() -> dict[str, str]:
    """The abilities this processor lacks, each with what happened when it was tried.

    Found out once: processes started from this one read the answer in their environment.
    """
    if MISSING not in os.environ:
        os.environ[MISSING] = json.dumps(probe())
    found: dict[str, str] = json.loads(os.environ[MISSING])
    return found


def probe() -> dict[str, str]:
    """Try every ability in processes of their own: one, and one more for each that dies."""
    untried, missing = list(ABILITIES), {}
    while untried:
        program = [sys.executable, __file__, *untried]
        done = subprocess.run(program, capture_output=True, text=True, timeout=300)
        tried = done.stdout.split("\n")[:-1]
        if len(tried) == len(untried):
            break
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else done.stderr[-300:]
        missing[untried[len(tried)]] = how
        untried = untried[len(tried) + 1 :]
    return missing


def _try(names: list[str]) -> None:
    simulated = os.environ.get(SIMULATE, "").split(",")
    for name in names:
        if name in simulated:
            os.kill(os.getpid(), signal.SIGILL)
        with torch.inference_mode():
            ABILITIES[name]()
        print(name, flush=True)


class _Guard(TorchFunctionMode):
    """Fails where torch is asked for an ability that is missing, before it can kill the process."""

    def __init__(self, missing: set[str]) -> None:
        super().__init__()
        self.missing = missing

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        kinds = {"conv": "convolution", "attention": "attention", "transformer": "attention"}
        kind = next((kind for part, kind in kinds.items() if part in name), None)
        if kind:
            tensors = [value for value in args if isinstance(value, torch.Tensor)]
            for half, dtype in _HALVES.items():
                if f"{half} {kind}" in self.missing and any(t.dtype == dtype for t in tensors):
                    raise AssertionError(f"{name} needs {half} {kind}: mark the test with needs()")
        return function(*args, **(kwargs or {}))


@contextmanager
def guarded(missing: set[str]) -> Iterator[None]:
    """Nothing within may use a missing ability; costs nothing where none is missing."""
    if not missing:
        yield
        return
    with _Guard(missing):
        yield


if __name__ == "__main__":
    _try(sys.argv[1:])
