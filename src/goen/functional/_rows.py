"""Rows of features: what may come in, and in which portions it is worked on."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from goen.errors import FitError, UsageError

# Rows multiplied at once: 8 MB of float64 at D = 512, large enough that the product runs at full
# speed and small enough that the working memory does not depend on the caller's chunks.
_BLOCK_ROWS = 2048
# Elements worked on at once where most operations go through each number once: 2 MB of float64
# stay in a processor's cache, and their memory is used again and again. Of 20,000 x 512 rows at
# once, fresh memory of 80 MB for each step took six times as long as the arithmetic. But not fewer
# rows than a product needs to run at full speed.
_CACHED_ELEMENTS, _CACHED_ROWS = 2**18, 512
# Elements prepared at once on a CPU. torch spreads an operation over threads from 2^15 elements on
# (and indexing always, so index_select below), and each time waits for the slowest. Beside one busy
# process on two cores, a chunk of 4,096 x 512 took 370 ms in whole-block operations, 84 ms so.
_SLICE_ELEMENTS = 2**15 - 1

# Float images may leave [0, 1] by this much, wherever they come in: resizing with a smooth filter
# overshoots a little, and a normalised or 0-255 image leaves it by far more.
PIXEL_SLACK = 0.02


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b rounded, and what the rounding lost, exactly (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def blocks(num_rows: int) -> Iterable[slice]:
    """The rows in portions; all at once in a traced program, which has no loops."""
    if torch.compiler.is_compiling():
        return (slice(None),)
    return (slice(start, start + _BLOCK_ROWS) for start in range(0, num_rows, _BLOCK_ROWS))


def cached_blocks(num_rows: int, width: int, device: torch.device) -> Iterable[slice]:
    """The rows in portions that stay in a processor's cache; at least one portion, maybe empty."""
    in_cache = max(_CACHED_ELEMENTS // max(width, 1), _CACHED_ROWS)
    size = in_cache if device.type == "cpu" else max(in_cache, _BLOCK_ROWS)
    return (slice(start, start + size) for start in range(0, max(num_rows, 1), size))


def in_blocks(of: Callable[[slice], Tensor], rows: Tensor, width: int | None = None) -> Tensor:
    """What a function gives of some rows at a time, of all rows, ``(N, ...)`` float64.

    Written into one tensor: small results that are kept between large temporary ones would stop
    the memory of these from being used again, so that it would grow with the rows.

    Args:
        of: takes a slice of the rows.
        rows: ``(N, D)``.
        width: of the widest tensor of N rows that the function works on, if it is not D.

    Example:
        >>> rows = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        >>> in_blocks(lambda block: rows[block].norm(dim=1), rows)
        tensor([5., 1.], dtype=torch.float64)
    """
    found = None
    for block in cached_blocks(len(rows), width or rows.shape[1], rows.device):
        part = of(block)
        if found is None:
            found = part.new_empty((len(rows), *part.shape[1:]), dtype=torch.float64)
        found[block] = part
    assert found is not None, "there is at least one block"
    return found


def floats(values: Tensor) -> Tensor:
    """The values in their own precision, but at least in float32."""
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))


def row_slices(num_rows: int, dim: int, device: torch.device) -> list[slice]:
    if torch.compiler.is_compiling():
        return [slice(None)]
    size = max(_SLICE_ELEMENTS // dim, 1) if device.type == "cpu" else _BLOCK_ROWS
    return [slice(start, start + size) for start in range(0, num_rows, size)]


def check_features(features: Tensor, dim: int | None = None) -> None:
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise UsageError(f"Expected a torch tensor of floats (N, D), got {kind}.")
    if features.ndim != 2:
        raise UsageError(
            f"Expected rows of shape (N, D), got {tuple(features.shape)}. One row is (1, D)."
        )
    if dim is not None and features.shape[1] != dim:
        raise UsageError(
            f"Expected features of width {dim}, got {features.shape[1]}. Different backbone?"
        )


def check_labels(labels: Tensor, num_rows: int, num_classes: int) -> None:
    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if not isinstance(labels, Tensor) or labels.dtype not in integers:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise UsageError(f"Expected a torch tensor of integer labels (N,), got {kind}.")
    if labels.shape != (num_rows,):
        raise UsageError(f"Expected {num_rows} labels, one per row, got {tuple(labels.shape)}.")
    if num_rows and not (int(labels.min()) >= 0 and int(labels.max()) < num_classes):
        raise UsageError(
            f"Labels lie in 0 .. {num_classes - 1} for {num_classes} classes, "
            f"got {int(labels.min()) if int(labels.min()) < 0 else int(labels.max())}. Do they "
            "count from 0?"
        )


def check_finite_for_fit(rows: Tensor, of: str = "feature") -> None:
    if sums_are_finite(rows):
        return
    bad = int((~torch.isfinite(rows).all(dim=1)).sum())
    if bad:
        raise FitError(
            f"{bad} of {len(rows)} {of} rows hold NaN or infinity. Find the images that "
            "give them and leave them out, or fix the network; nothing was added."
        )


def sums_are_finite(rows: Tensor) -> bool:
    """True only if every element is finite; False may also be an overflow of a sum.

    Several times faster than looking at every element, which is left for when it is False.
    """
    if torch.compiler.is_compiling():
        return True  # a traced program cannot ask; whoever traces masks what is not finite
    wide = torch.promote_types(rows.dtype, torch.float32)
    if rows.numel() <= _SLICE_ELEMENTS:
        return math.isfinite(rows.sum(dtype=wide).item())
    parts = row_slices(len(rows), rows.shape[1], rows.device)
    sums = rows.new_empty(len(parts), dtype=wide)
    for number, part in enumerate(parts):
        sums[number] = rows[part].sum(dtype=wide)
    return math.isfinite(sums.sum().item())
