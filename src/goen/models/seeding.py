"""Random numbers from a seed, without a trace in the process's own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_CPU = torch.device("cpu")


@contextmanager
def seeded(seed: int, device: torch.device = _CPU) -> Iterator[None]:
    """Within the block torch's random numbers, on the CPU and this device, come from the seed.

    Afterwards they go on as if the block had not been. ``torch.manual_seed`` would also set the
    generators of all other devices.

    Example:
        >>> with seeded(0):
        ...     one = torch.rand(2)
        >>> torch.equal(one, torch.rand(2, generator=torch.Generator().manual_seed(0)))
        True
    """
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
