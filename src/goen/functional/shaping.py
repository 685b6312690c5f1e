"""Activation shaping: features pruned, clipped or scaled before the last linear layer."""

from collections.abc import Callable
from typing import overload

import numpy as np
import torch
from torch import Tensor

from goen.functional._rows import floats

PERCENTILES = tuple(range(5, 100, 5))
"""Those that ``harmless_percentile`` chooses from."""
# Entries of which a percentile is taken, 256 MB of float32.
_MOST_ENTRIES = 2**26
# The share of predictions that must stay as they are.
_KEPT = 0.99


def activation_percentiles(rows: Tensor, *percentiles: float) -> list[float]:
    """These percentiles of all entries of rows ``(N, D)`` together.

    Of more than 2^26 entries those of some rows, drawn at random: 32,768 of width 2,048.

    Example:
        >>> activation_percentiles(torch.tensor([[0.0, 1.0], [2.0, 4.0]]), 50, 100)
        [1.5, 4.0]
    """
    most = _MOST_ENTRIES // rows.shape[1]
    if len(rows) > most:
        drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:most]
        rows = rows[drawn.sort().values.to(rows.device)]
    # NumPy's, since torch's refuses more than 2^24 numbers. Not in float16, which would round.
    found = np.percentile(floats(rows).cpu().numpy().reshape(-1), percentiles)
    return [float(value) for value in found]


@overload
def kept_count(width: int, percentile: float) -> int: ...
@overload
def kept_count(width: int, percentile: Tensor) -> Tensor: ...
def kept_count(width: int, percentile: float | Tensor) -> int | Tensor:
    """How many of the largest entries of a row are above the percentile; at least one.

    Args:
        width: of the row.
        percentile: one for all rows, or one of each row, ``(N,)``.

    Example:
        >>> kept_count(512, 90), kept_count(4, 99), kept_count(512, torch.tensor([90.0, 75.0]))
        (51, 1, tensor([ 51, 128]))
    """
    if isinstance(percentile, Tensor):
        return (width - (width * percentile / 100).round().to(torch.int64)).clamp_min(1)
    return max(width - round(width * percentile / 100), 1)


def sharpness(rows: Tensor, count: int | Tensor) -> Tensor:
    r"""The sum of each row ``(N, D)`` over that of its ``count`` largest entries, ``(N, 1)``.

    Negative entries count as 0, so that it lies in 1 .. D / count; 1 for a row without any
    positive entry. It is low where few entries are large.

    Args:
        rows: of any floats.
        count: one for all rows, or one of each row, ``(N,)``.

    Example:
        >>> sharpness(torch.tensor([[3.0, 1.0], [2.0, 2.0], [0.0, 0.0]]).double(), 1).flatten()
        tensor([1.3333, 2.0000, 1.0000], dtype=torch.float64)
    """
    positive = rows.clamp_min(0)
    if isinstance(count, Tensor):
        ordered = positive.sort(dim=1, descending=True).values.cumsum(dim=1)
        after = ordered.gather(1, count[:, None] - 1)
    else:
        after = largest(positive, count).sum(dim=1, keepdim=True)
    before = positive.sum(dim=1, keepdim=True)
    ratio = before / after.clamp_min(torch.finfo(rows.dtype).tiny)
    # Not "> 0": the ratio of a row with NaN must be NaN.
    return torch.where(after <= 0, torch.ones_like(ratio), ratio)


def largest(rows: Tensor, count: int) -> Tensor:
    """The ``count`` largest entries of each row ``(N, D)``, in any order.

    Example:
        >>> largest(torch.tensor([[3.0, 1.0, 2.0]]), 2).sort().values
        tensor([[2., 3.]])
    """
    if torch.compiler.is_compiling() or rows.device.type != "cpu":
        return rows.topk(count, dim=1).values
    # NumPy's partition takes a sixth of the time of topk.
    return torch.from_numpy(np.partition(rows.detach().numpy(), -count, axis=1)[:, -count:])


def prune(rows: Tensor, count: int) -> Tensor:
    """Rows ``(N, D)`` with all but the ``count`` largest entries of each set to 0.

    All that are equal to the least of these are kept.

    Example:
        >>> prune(torch.tensor([[3.0, 1.0, 2.0]]), 2).tolist()
        [[3.0, 0.0, 2.0]]
    """
    return rows.masked_fill(rows < largest(rows, count).amin(dim=1, keepdim=True), 0.0)


def binarise(rows: Tensor, count: int) -> Tensor:
    """Rows ``(N, D)`` with the sum of each spread evenly over its ``count`` largest entries.

    Example:
        >>> binarise(torch.tensor([[3.0, 1.0, 2.0]]), 2).tolist()
        [[3.0, 0.0, 3.0]]
    """
    places = rows.topk(count, dim=1).indices
    share = rows.sum(dim=1, keepdim=True) / count
    return torch.zeros_like(rows).scatter(1, places, share.expand(-1, count))


def harmless_percentile(predictions: Callable[[float], Tensor], unshaped: Tensor) -> float:
    """The highest percentile that leaves 99 % of the predictions as they are, of 5, 10, ... 95.

    A choice from ID images alone: as much is removed as the classifier can spare. The lowest of
    these percentiles if none leaves as many.

    Args:
        predictions: classes ``(N,)`` of ID images with features shaped at a percentile.
        unshaped: their classes ``(N,)`` without.

    Example:
        >>> classes = torch.tensor([0, 1])
        >>> harmless_percentile(lambda q: classes if q <= 70 else 1 - classes, classes)
        70
    """
    for percentile in reversed(PERCENTILES):
        same = predictions(percentile) == unshaped
        if float(same.to(torch.float64).mean()) >= _KEPT:
            return percentile
    return PERCENTILES[0]
