"""What of a feature lies outside the subspace of the training features, as in ViM."""

import torch
from torch import Tensor

from goen.errors import FitError, UsageError
from goen.functional._rows import blocks, in_blocks

# The share of the squared lengths in the residual, below which it is rounding of float32 features.
_LEAST_SHARE = 1e-14


def principal_dim(width: int, rows: int) -> int:
    """How many principal directions ViM leaves out of the residual, by default.

    By the width of the features, and never more than half as many as there are training rows:
    within as many dimensions as rows there is no residual.

    Example:
        >>> [principal_dim(width, 45_000) for width in (2048, 768, 512, 33, 1)]
        [1000, 512, 256, 16, 0]
        >>> principal_dim(1280, 880)
        440
    """
    by_width = 1000 if width > 1500 else 512 if width >= 768 else width // 2
    return min(by_width, rows // 2)


def zero_logits_point(weight: Tensor, bias: Tensor) -> Tensor:
    r"""The point :math:`o = -W^+ b` ``(D,)`` whose logits are nearest to 0, by least squares.

    Example:
        >>> zero_logits_point(torch.eye(2), torch.tensor([4.0, -1.0])).tolist()
        [-4.0, 1.0]
    """
    inverse: Tensor = torch.linalg.pinv(weight)
    return -(inverse @ bias)


def residual_directions(rows: Tensor, origin: Tensor, dim: int | None) -> Tensor:
    """The directions ``(D, D - dim)`` in which rows ``(N, D)`` are shortest, seen from the origin.

    Args:
        rows: of training images.
        origin: ``(D,)`` float64.
        dim: how many principal directions are left out; ``principal_dim`` if not given.

    Raises:
        UsageError: dim leaves no direction.
        FitError: the rows lie within the principal directions.

    Example:
        >>> rows = torch.tensor([[4.0, 1.0], [-4.0, 1.0], [4.0, -1.0], [-4.0, -1.0]])
        >>> residual_directions(rows, torch.zeros(2, dtype=torch.float64), None).abs().tolist()
        [[0.0], [1.0]]
    """
    width = len(origin)
    if dim is not None and dim >= width:
        raise UsageError(
            f"dim lies in 0 .. {width - 1}, to leave a residual of features of width {width}, "
            f"got {dim}."
        )
    moment = torch.zeros(width, width, dtype=torch.float64, device=rows.device)
    for block in blocks(len(rows)):
        centred = rows[block].to(torch.float64) - origin
        moment.addmm_(centred.mT, centred)
    dim = principal_dim(width, len(rows)) if dim is None else dim
    # Eigenvalues, the squared lengths of all rows together, rise: the least come first.
    squared, directions = torch.linalg.eigh(moment)
    residual: Tensor = directions[:, : width - dim].contiguous()
    if float(squared[: width - dim].sum()) <= _LEAST_SHARE * float(squared.sum()):
        raise FitError(
            f"The {len(rows)} training rows lie within {dim} of {width} dimensions, so "
            "there is no residual to measure. Lower dim, or give more rows."
        )
    return residual


def residual_length(rows: Tensor, origin: Tensor, residual: Tensor) -> Tensor:
    """The length ``(N,)`` of rows ``(N, D)``, seen from the origin, in these directions.

    The origin is subtracted in float64, the product is in the precision of the rows.

    Example:
        >>> origin = torch.zeros(2, dtype=torch.float64)
        >>> direction = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> residual_length(torch.tensor([[9.0, -3.0]]), origin, direction)
        tensor([3.])
    """
    seen = (rows.to(origin) - origin).to(torch.promote_types(rows.dtype, torch.float32))
    length: Tensor = torch.linalg.vector_norm(seen @ residual.to(seen.dtype), dim=1)
    return length


def mean_residual_length(rows: Tensor, origin: Tensor, residual: Tensor) -> float:
    """The mean of these lengths."""
    lengths = in_blocks(lambda block: residual_length(rows[block], origin, residual), rows)
    return float(lengths.mean())
