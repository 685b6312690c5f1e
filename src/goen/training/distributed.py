"""Training in several processes, which torchrun starts: torch's ``DistributedDataParallel``.

Every process trains on its share of each batch, and gradients are averaged. On GPUs batch norms are
over the whole batch (``SyncBatchNorm``). On CPUs, where torch has none, each process normalises by
its own share, and the running moments are those of rank 0: not the training of one process.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from goen.errors import FitError

# The others wait while rank 0 evaluates, which may take long. torchrun notices a killed process.
_TIMEOUT = timedelta(days=1)


def current_rank() -> int:
    """The number of this process; rank 0 measures and writes files."""
    return distributed.get_rank() if _is_joined() else 0


def num_processes() -> int:
    """How many processes train together."""
    return distributed.get_world_size() if _is_joined() else 1


def _is_joined() -> bool:
    return distributed.is_available() and distributed.is_initialized()


@contextmanager
def join_processes() -> Iterator[int]:
    """Join the processes that torchrun started; gives the rank of this one, 0 without torchrun.

    Raises:
        FitError: torch failed in this process or lost another one.
    """
    if not (distributed.is_available() and distributed.is_torchelastic_launched()) or _is_joined():
        yield current_rank()
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    try:
        distributed.init_process_group(backend, timeout=_TIMEOUT)
        yield current_rank()
        distributed.barrier()  # nobody closes a connection that another still reads from
    except RuntimeError as error:
        raise FitError(
            f"A training in several processes failed: {str(error)[:200]} If another process has "
            "ended, run the same command again: it continues after the last finished epoch."
        ) from error
    finally:
        if _is_joined():
            distributed.destroy_process_group()
        # The threads of gloo may hold tensors, and Python aborts if they are freed while it ends.
        gc.collect()


def broadcast(message: Any = None) -> Any:
    """What rank 0 sends, in every process; the others wait for it."""
    if num_processes() == 1:
        return message
    content = [message]
    distributed.broadcast_object_list(content, device=torch.device("cpu"))
    return content[0]


def sum_over_processes(*values: float) -> tuple[float, ...]:
    """Each value, summed over all processes."""
    if num_processes() == 1:
        return values
    total = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(total)
    return tuple(total.tolist())


def synchronise_norms(network: nn.Module, device: torch.device) -> None:
    """Replace the batch norms of a network on a GPU by those over the batch of all processes."""
    if num_processes() > 1 and device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]


def parallel(module: nn.Module) -> nn.Module:
    """The module with the weights of rank 0, and with gradients averaged over all processes."""
    return module if num_processes() == 1 else DistributedDataParallel(module)
