"""The k-th nearest row of a bank: exact, in bounded memory."""

import torch
from torch import Tensor

from goen.errors import UsageError
from goen.functional._rows import check_features, row_slices, sums_are_finite

# Similarities held at once, 128 MB. Each product reads the whole bank again, so few queries at a
# time would be slow: against 45,000 x 512 rows, 128 at once take 1.5 x as long as 512.
_SIMILARITIES = 2**25
# Neighbours in a group of which only the best is looked at first.
_GROUP = 16
# Neighbours measured again on either side of the k-th.
_EITHER_SIDE = 8
# What squared lengths lack to 1 if they lack less than this is rounding.
_ROUNDING = 1e-6


def kth_cosine_distance(queries: Tensor, bank: Tensor, k: int) -> Tensor:
    r"""1 - a·b of each query a ``(N, D)`` and the k-th most similar row b of the bank ``(M, D)``.

    ``(N,)`` float64, for rows of unit length, or of zeros, which are at distance 1 from everything.

    One float32 product gives all similarities, and the best of each group of sixteen: the k best
    groups hold the k best rows. The neighbours next to the k-th are then measured again in float64,
    as :math:`\lVert a - b \rVert^2 / 2`, which has no cancellation: near-duplicates, all at
    distance 0 or 1e-7 in float32, are told apart and put in order. If more than eight rows on
    either side have the k-th similarity to float32, the answer is the distance of one of them.

    Raises:
        UsageError: shapes that do not belong together, a k that is not in 1 .. M, or queries that
            are not finite.

    Example:
        >>> bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> kth_cosine_distance(torch.tensor([[1.0, 0.0]]), bank, k=2)
        tensor([1.], dtype=torch.float64)
    """
    check_features(bank)
    check_features(queries, bank.shape[1])
    if not 1 <= k <= len(bank):
        raise UsageError(f"k lies in 1 .. {len(bank)}, the rows of the bank, got {k}.")
    if not sums_are_finite(queries) and not bool(torch.isfinite(queries).all()):
        raise UsageError("Queries hold NaN or infinity. Check the images and the network.")
    last = min(k + _EITHER_SIDE, len(bank))
    first = max(k - 1 - _EITHER_SIDE, 0)
    narrow = bank.detach().to(torch.float32)
    step = max(_SIMILARITIES // len(bank), 1)
    similarity = narrow.new_empty(min(step, len(queries)), _padded(len(bank)))
    similarity[:, len(bank) :] = -torch.inf
    out = [queries.new_empty(0, dtype=torch.float64, device=bank.device)]
    for start in range(0, len(queries), step):
        chunk = queries[start : start + step].detach().to(bank.device)
        rows = similarity[: len(chunk)]
        torch.mm(chunk.to(torch.float32), narrow.mT, out=rows[:, : len(bank)])
        near = most_similar(rows, last)[:, first:]
        out.append(_distances(chunk, bank, near).sort(dim=1).values[:, k - 1 - first])
    return torch.cat(out)


def _padded(columns: int) -> int:
    return -(-columns // _GROUP) * _GROUP


def most_similar(similarity: Tensor, count: int) -> Tensor:
    """The columns of the largest values of each row, ``(N, count)``, largest first.

    ``topk`` by way of the groups' largest values: several times faster when a row is long. Column
    j belongs to group j mod G, so that the largest of the groups are taken over whole lines.

    Args:
        similarity: ``(N, M)``, with M a multiple of sixteen.
        count: at most M.

    Example:
        >>> row = torch.zeros(1, 64)
        >>> row[0, 40], row[0, 7] = 2.0, 3.0
        >>> most_similar(row, 2)
        tensor([[ 7, 40]])
    """
    num_rows, columns = similarity.shape
    groups = columns // _GROUP
    if count >= groups:
        return similarity.topk(count, dim=1).indices
    grouped = similarity.view(num_rows, _GROUP, groups)
    best = grouped.amax(dim=1).topk(count, dim=1, sorted=False).indices
    members = best[:, None, :].expand(num_rows, _GROUP, count)
    place = grouped.gather(2, members).flatten(1).topk(count, dim=1).indices
    return place // count * groups + best.gather(1, place % count)


def _distances(queries: Tensor, bank: Tensor, near: Tensor) -> Tensor:
    """1 - a·b in float64 of each query ``(N, D)`` and its rows of the bank ``(N, K)``.

    From the difference: 2 (1 - a·b) is its squared length, and what the squared lengths of a and b
    lack to 1, which is 1 for a row of zeros.
    """
    query = torch.arange(len(queries), device=bank.device).repeat_interleave(near.shape[1])
    row = near.flatten()
    squared = bank.new_empty(2, len(row), dtype=torch.float64)  # of b, and of the difference
    for part in row_slices(len(row), bank.shape[1], bank.device):
        b = bank.index_select(0, row[part]).to(torch.float64)
        torch.linalg.vecdot(b, b, out=squared[0, part])
        b -= queries.index_select(0, query[part])
        torch.linalg.vecdot(b, b, out=squared[1, part])
    own = torch.linalg.vector_norm(queries, dim=1, dtype=torch.float64).square()
    missing = 2 - own.index_select(0, query) - squared[0]
    missing = torch.where(missing.abs() < _ROUNDING, 0.0, missing)
    return ((squared[1] + missing) / 2).view(near.shape)
