"""One training in several processes, as torchrun starts them: each has a share of every batch.

A training of several processes takes the steps of one process with the whole batch. Every process
draws the order, the augmentation and the classifier's randomness of the whole batch. It encodes its
share of the images, with batch norms over the whole batch; the encoded rows are put together, every
process computes the loss of the whole batch, and gradients are averaged. What differs is the order
in which float32 numbers are added up.
"""

import gc
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm

from goen.errors import FitError, UsageError
from goen.runs.manifest import JsonValue

# The others wait while the first evaluates, which may take long. One that was killed is noticed at
# once, by its closed connection and by torchrun.
_TIMEOUT = timedelta(days=1)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True)
class Ranks:
    """The processes of one training. Alone, all of this does nothing.

    Attributes:
        rank: the number of this process; 0 writes files and prints.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    def share(self, count: int) -> slice:
        """The rows of a batch that this process encodes; shares differ by one row at most.

        Example:
            >>> [Ranks(rank, 3).share(8) for rank in range(3)]
            [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        if count < self.size:
            raise UsageError(f"{self.size} processes cannot share a batch of {count} images.")
        ends = [-(-count * number // self.size) for number in (self.rank, self.rank + 1)]
        return slice(*ends)

    def gather_rows(self, rows: Tensor, count: int) -> Tensor:
        """All ``count`` rows of the batch, of which these are this process's share."""
        if self.size == 1:
            return rows
        gathered: Tensor = _GatheredRows.apply(rows, self, count)  # type: ignore[no-untyped-call]
        return gathered

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Put the mean of all processes' gradients in place of each."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.size == 1 or not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        _sum(flat)
        flat /= self.size
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()

    def broadcast(self, message: JsonValue = None) -> JsonValue:
        """What rank 0 says, which the others wait for."""
        if self.size == 1:
            return message
        text = json.dumps(message).encode()
        length = torch.tensor([len(text)])
        with _connected():
            distributed.broadcast(length, 0)
            content = torch.zeros(int(length), dtype=torch.uint8)
            if not self.rank:
                content = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            distributed.broadcast(content, 0)
        found: JsonValue = json.loads(content.numpy().tobytes())
        return found

    def gather_bytes(self, own: bytes) -> list[bytes]:
        """What each process has, on every one of them."""
        if self.size == 1:
            return [own]
        with _connected():
            lengths = torch.zeros(self.size, dtype=torch.int64)
            lengths[self.rank] = len(own)
            distributed.all_reduce(lengths)
            found = []
            for rank, length in enumerate(lengths.tolist()):
                content = torch.zeros(length, dtype=torch.uint8)
                if rank == self.rank and length:
                    content = torch.frombuffer(bytearray(own), dtype=torch.uint8)
                distributed.broadcast(content, rank)
                found.append(content.numpy().tobytes())
        return found

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors with those of rank 0."""
        if self.size > 1:
            with _connected():
                for tensor in tensors:
                    rows = tensor.contiguous()  # filters of convolutions are stored otherwise
                    distributed.broadcast(rows, 0)
                    tensor.copy_(rows)


_current = Ranks()


def current_ranks() -> Ranks:
    """The processes that were joined; alone if none were."""
    return _current


def launched_rank() -> int:
    """The number that torchrun gave this process; 0 without torchrun."""
    launched = distributed.is_available() and distributed.is_torchelastic_launched()
    return int(os.environ["RANK"]) if launched else 0


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """The processes that torchrun started with this one; alone without torchrun."""
    global _current
    launched = distributed.is_available() and distributed.is_torchelastic_launched()
    if not launched or _current.size > 1:
        yield _current
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    with _connected():
        distributed.init_process_group(backend, timeout=_TIMEOUT)
    try:
        _current = Ranks(distributed.get_rank(), distributed.get_world_size())
        yield _current
        with _connected():
            distributed.barrier()  # nobody closes a connection that another still reads from
    finally:
        _current = Ranks()
        distributed.destroy_process_group()
        # The threads of gloo may hold tensors, and Python aborts if they are freed while it ends.
        gc.collect()


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise FitError(
            "Another process of this training has ended or cannot be reached. Run the same command "
            f"again: it continues after the last finished epoch. ({str(error)[:200]})"
        ) from error


def _sum(values: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    with _connected():
        distributed.all_reduce(values)
    return values


class _GatheredRows(torch.autograd.Function):
    """Rows of all processes. Each of them computes the same loss of all rows.

    The gradient of a share is multiplied by the number of processes, so that the mean of all
    processes' gradients is right both for what every process computes whole (the classifier) and
    for what each computes of its share (everything before it).
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks, count: int) -> Tensor:
        ctx.own, ctx.size = ranks.share(count), ranks.size
        whole = rows.new_zeros(count, *rows.shape[1:])
        whole[ctx.own] = rows
        return _sum(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.own] * ctx.size, None, None


@contextmanager
def synchronised_norms(network: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Batch norms in training mode normalise by the whole batch, not by this process's share.

    torch's own ``SyncBatchNorm`` runs on GPUs only.
    """
    with ExitStack() as stack:
        for module in network.modules() if ranks.size > 1 else ():
            if isinstance(module, _NORMS):
                module.forward = partial(_normalised, module)  # type: ignore[method-assign]
                stack.callback(delattr, module, "forward")
        yield


def _normalised(norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    if not norm.training:
        return type(norm).forward(norm, x)
    mean, variance, count = _moments(x)
    if norm.running_mean is not None and norm.running_var is not None:
        assert norm.momentum is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        unbiased = variance * (count / (count - 1))
        for running, new in ((norm.running_mean, mean), (norm.running_var, unbiased)):
            running.mul_(1 - norm.momentum).add_(new.to(running) * norm.momentum)
    normalised: Tensor = _SynchronisedNorm.apply(  # type: ignore[no-untyped-call]
        x, norm.weight, norm.bias, mean, variance, norm.eps, count
    )
    return normalised


def _moments(x: Tensor) -> tuple[Tensor, Tensor, int]:
    """Mean, variance and number of all processes' values in each channel, in float64."""
    values = x.detach()
    axes = [axis for axis in range(x.ndim) if axis != 1]
    variance, mean = torch.var_mean(
        values.to(torch.promote_types(x.dtype, torch.float32)), axes, correction=0
    )
    variance, mean = variance.double(), mean.double()
    count = x.numel() // x.shape[1]
    parts = torch.stack([mean, variance + mean.square(), torch.ones_like(mean)]) * count
    first, second, number = _sum(parts)
    total = int(number[0])
    mean = first / total
    return mean, (second / total - mean.square()).clamp_min(0), total


class _SynchronisedNorm(torch.autograd.Function):
    """Batch norm with given moments of the whole batch, which depend on every process's input."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        count: int,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt())
        ctx.count = count
        return batch_norm(x, mean.to(weight), variance.to(weight), weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        given = dy.dtype
        # Products and sums in bfloat16 would have eight bits.
        wide = torch.promote_types(given, torch.float32)
        dy, x = dy.to(wide), x.to(wide)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        # Sums of dy and of dy times the normalised input: of this share, then of the whole batch.
        own_dy = dy.sum(axes).double()
        own_dot = ((dy * x).sum(axes).double() - own_dy * mean) * scale
        whole_dy, whole_dot = _sum(torch.stack([own_dy, own_dot])) / ctx.count
        # dx = w s (dy - mean(dy) - x̂ mean(dy x̂)) with x̂ = (x - m) s: linear in dy and x.
        a = weight.double() * scale
        b = -a * scale * whole_dot
        c = -a * whole_dy - b * mean

        def channel(values: Tensor) -> Tensor:
            return values.to(dy).view(1, -1, *(1 for _ in range(x.ndim - 2)))

        dx = torch.addcmul(torch.addcmul(channel(c), dy, channel(a)), x, channel(b))
        return dx.to(given), own_dot.to(weight), own_dy.to(weight), None, None, None, None
