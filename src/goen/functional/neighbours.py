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
# Neighbours that may be measured again on either side of the k-th.
_EITHER_SIDE = 8
# What squared lengths lack to 1 if they lack less than this is rounding.
ROUNDING = 1e-6
# Rows of which the squared length of the mean is above this lie in a narrow cone.
_NARROW = 0.9
# So many rows are enough to find a centre.
_SAMPLE = 1024


def kth_cosine_distance(queries: Tensor, bank: Tensor, k: int) -> Tensor:
    r"""1 - a·b of each query a ``(N, D)`` and the k-th most similar row b of the bank ``(M, D)``.

    ``(N,)`` float64, for rows of unit length, or of zeros, which are at distance 1 from everything.

    One float32 product gives all similarities, and the best of each group of sixteen: the k best
    groups hold the k best rows. The k-th, and those next to it that rounding may have put out of
    order, are then measured again in float64, as :math:`\lVert a - b \rVert^2 / 2`, where nothing
    cancels: near-duplicates, all at distance 0 or 1e-7 in float32, are distinguished and ordered.
    Up to eight on either side are: of still more rows that float32 cannot distinguish from the
    k-th, the answer is the distance of one. Rows in a narrow cone (features with a large common
    part), of which float32 distinguishes badly, are first centred.

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
    frame = _Frame(bank.detach())
    step = max(_SIMILARITIES // len(bank), 1)
    similarity = frame.rows.new_empty(min(step, len(queries)), -(-len(bank) // _GROUP) * _GROUP)
    similarity[:, len(bank) :] = -torch.inf
    out = [bank.new_empty(0, dtype=torch.float64)]
    for start in range(0, len(queries), step):
        chunk = queries[start : start + step].detach().to(bank.device)
        rows = similarity[: len(chunk)]
        error = frame.similarity(chunk, out=rows[:, : len(bank)])
        out.append(_kth_of(chunk, bank, k, error, *most_similar(rows, last)))
    return torch.cat(out)


class _Frame:
    r"""A bank in float32, seen from a centre c: zero, or the rows' mean if they lie in a cone.

    Of one query all :math:`a \cdot b` differ by the same from
    :math:`(a - c) \cdot (b - c) - \lVert b - c \rVert^2 / 2`, of which the rounding is as small as
    the cone is narrow.
    """

    def __init__(self, bank: Tensor) -> None:
        centre = bank[:: -(-len(bank) // _SAMPLE)].mean(dim=0)
        length = float(centre.dot(centre))
        if length <= _NARROW:
            self.centre = torch.zeros_like(centre)
            self.rows = bank.to(torch.float32)
            self.handicap = self.rows.new_zeros(len(bank))
            self.radius = 1.0
        else:
            self.centre = centre
            self.rows = (bank - centre).to(torch.float32)
            squared = torch.linalg.vecdot(self.rows, self.rows)
            self.handicap = torch.where(bank.any(dim=1), -squared / 2, -(1 + length) / 2)
            self.radius = float(squared.max()) ** 0.5

    def similarity(self, queries: Tensor, out: Tensor) -> Tensor:
        """Write what orders the rows like their similarity; a bound ``(N, 1)`` on its rounding."""
        moved = (queries - self.centre).to(torch.float32)
        torch.addmm(self.handicap, moved, self.rows.mT, out=out)
        lengths: Tensor = torch.linalg.vector_norm(moved, dim=1, keepdim=True)
        return (len(self.centre) + 8) * 2**-24 * (lengths * self.radius + self.handicap.abs().max())


def most_similar(similarity: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values of each row and their columns, ``(N, count)`` each, largest first.

    ``topk`` by way of the groups' largest values: several times faster when a row is long. Column
    j belongs to group j mod G, so that the largest of the groups are taken over whole lines.

    Args:
        similarity: ``(N, M)``, with M a multiple of sixteen.
        count: at most M.

    Example:
        >>> row = torch.zeros(1, 64)
        >>> row[0, 40], row[0, 7] = 2.0, 3.0
        >>> most_similar(row, 2)
        (tensor([[3., 2.]]), tensor([[ 7, 40]]))
    """
    num_rows, columns = similarity.shape
    groups = columns // _GROUP
    if count >= groups:
        values, place = similarity.topk(count, dim=1)
        return values, place
    grouped = similarity.view(num_rows, _GROUP, groups)
    best = grouped.amax(dim=1).topk(count, dim=1, sorted=False).indices
    members = best[:, None, :].expand(num_rows, _GROUP, count)
    values, place = grouped.gather(2, members).flatten(1).topk(count, dim=1)
    return values, place // count * groups + best.gather(1, place % count)


def _kth_of(
    queries: Tensor, bank: Tensor, k: int, error: Tensor, similarity: Tensor, near: Tensor
) -> Tensor:
    """The k-th least distance, of neighbours ``(N, K)`` that are in order but for an error."""
    first = max(k - 1 - _EITHER_SIDE, 0)
    similarity, near = similarity[:, first:], near[:, first:]
    kth = k - 1 - first
    # Both the k-th and the other may be wrong by that.
    unsure = (similarity - similarity[:, kth : kth + 1]).abs() <= 2 * error
    query, column = torch.nonzero(unsure, as_tuple=True)
    distance = bank.new_full(near.shape, torch.inf, dtype=torch.float64)
    distance[:, :kth] = -torch.inf
    distance[query, column] = _distances(queries, bank, query, near[query, column])
    return distance.sort(dim=1).values[:, kth]


def _distances(queries: Tensor, bank: Tensor, query: Tensor, row: Tensor) -> Tensor:
    """1 - a·b in float64 of pairs of a query and a row of the bank, given by number ``(P,)``.

    From the difference: 2 (1 - a·b) is its squared length, and what the squared lengths of a and b
    lack to 1, which is 1 for a row of zeros.
    """
    squared = bank.new_empty(3, len(row), dtype=torch.float64)  # of a, of b, of the difference
    for part in row_slices(len(row), bank.shape[1], bank.device):
        a = queries.index_select(0, query[part]).to(torch.float64)
        b = bank.index_select(0, row[part]).to(torch.float64)
        for rows, out in zip((a, b, a - b), squared[:, part], strict=True):
            torch.linalg.vecdot(rows, rows, out=out)
    missing = 2 - squared[0] - squared[1]
    missing = torch.where(missing.abs() < ROUNDING, 0.0, missing)
    return (squared[2] + missing) / 2
