"""The nearest rows of a bank, and the k-th of them: exact, in bounded memory."""

import math
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from goen.errors import UsageError
from goen.functional._rows import row_slices

# Similarities held at once, 128 MB. Each product reads the whole bank again, so few queries at a
# time would be slow: against 45,000 x 512 rows, 128 at once take 1.5 x as long as 512.
_SIMILARITIES = 2**25
# Neighbours in a group of which only the best is looked at first.
_GROUP = 16
# Of so few similarities topk finds the best at once, sooner than in two steps.
_FEW = 2**17
# Neighbours after the k-th that are found at once, in case rounding put them out of order. If it
# may have done so with still more, eight times as many are, and so on.
_MORE = 8
# Neighbours of several queries that are then measured at once, a few numbers each: 100 MB.
_MEASURED = 2**22
# What squared lengths lack to 1 if they lack less than this is rounding.
ROUNDING = 1e-6
# Rows of which the squared length of the mean is above this lie in a narrow cone.
_NARROW = 0.9
# So many rows are enough to find a centre.
_SAMPLE = 1024


class NeighbourIndex:
    r"""Rows ``(M, D)`` made ready for searches: exact, in bounded memory.

    The rows have unit length, or are zeros, which are at distance 1 from everything.

    Rows in a narrow cone (features with a large common part), of which float32 distinguishes badly,
    are seen from their mean c. Of one query all :math:`a \cdot b` differ by the same from
    :math:`(a - c) \cdot (b - c) - (\lVert b - c \rVert^2 + 1 - \lVert b \rVert^2) / 2`, of which
    the rounding is as small as the cone is narrow. What does not depend on the queries is computed
    here, once.

    Memory: the rows themselves, which are not copied. Rows in a narrow cone, or of another type
    than float32, are held a second time, as float32. Pickled, it is the rows alone.

    Searches change nothing, so that several threads may share an index. Do not change the rows.

    Example:
        >>> index = NeighbourIndex(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        >>> index.kth_distance(torch.tensor([[1.0, 0.0]]), k=2)
        tensor([1.], dtype=torch.float64)
    """

    def __init__(self, bank: Tensor) -> None:
        self.bank = bank.detach()
        self._rows = self.bank.to(torch.float32)
        self._missing = _missing(self.bank)
        self._centre: Tensor | None = None
        self._handicap = self._rows.new_zeros(())
        self._radius = 1.0
        # At least in float32: the bound on the rounding of similarities is that of float32.
        exact = torch.promote_types(self.bank.dtype, torch.float32)
        centre = self.bank[:: -(-len(bank) // _SAMPLE)].to(exact).mean(dim=0)
        if float(centre.dot(centre)) > _NARROW:
            self._centre = centre
            self._rows = (self.bank - centre).to(torch.float32)
            squared = torch.linalg.vecdot(self._rows, self._rows)
            self._handicap = ((squared + _beyond_rounding(self._missing)) / -2).to(squared)
            self._radius = float(squared.max()) ** 0.5
        self._offset = float(self._handicap.abs().max())

    def __len__(self) -> int:
        return len(self.bank)

    def __reduce__(self) -> tuple[type[Self], tuple[Tensor]]:
        return type(self), (self.bank,)

    def kth_distance(self, queries: Tensor, k: int) -> Tensor:
        r"""1 - a·b of each query a ``(N, D)`` and the k-th most similar row b, ``(N,)`` float64.

        One float32 product gives all similarities, and the best of each group of sixteen: the k
        best groups hold the k best rows. The k-th, and those next to it that rounding may have put
        out of order, are then measured again in float64, as :math:`\lVert a - b \rVert^2 / 2`,
        where nothing cancels: near-duplicates, all at distance 0 or 1e-7 in float32, are
        distinguished and ordered.

        Args:
            queries: of unit length, or zeros.
            k: in 1 .. M.

        Raises:
            UsageError: queries that are not finite.
        """
        if torch.compiler.is_compiling():
            return self._traced_kth_distance(queries, k)
        out = self.bank.new_empty(len(queries), dtype=torch.float64)
        for asked, *found in self._candidates(queries, k):
            out[asked] = self._kth_of(k, *found)
        return out

    def _traced_kth_distance(self, queries: Tensor, k: int) -> Tensor:
        """The same in operations that ONNX has: one product in float64, without portions.

        The search above depends on values, which a traced program cannot; this one takes several
        times as long (``benchmarks/neighbours.py``). The tests compare the two.
        """
        rows, bank = queries.to(torch.float64), self.bank.to(torch.float64)
        lengths, squared = (rows * rows).sum(dim=1, keepdim=True), (bank * bank).sum(dim=1)
        missing = 2 - lengths - squared
        missing = torch.where(missing.abs() < ROUNDING, torch.zeros_like(missing), missing)
        doubled = lengths + squared - 2 * rows @ bank.T + missing
        return torch.topk(doubled, k, dim=1, largest=False).values[:, -1].clamp_min(0) / 2

    def nearest(self, queries: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """1 - a·b of each query a and its ``count`` nearest rows b, and which rows these are.

        Both ``(N, count)``, float64 and int64, nearest first; of rows at the same distance the
        first comes first.

        Args:
            queries: of unit length, or zeros.
            count: in 1 .. M.

        Raises:
            UsageError: queries that are not finite.

        Example:
            >>> index = NeighbourIndex(torch.tensor([[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
            >>> index.nearest(torch.tensor([[1.0, 0.0]]), count=2)
            (tensor([[0., 1.]], dtype=torch.float64), tensor([[2, 1]]))
        """
        shape = len(queries), count
        distances = self.bank.new_empty(shape, dtype=torch.float64)
        rows = self.bank.new_empty(shape, dtype=torch.int64)
        for asked, chunk, _, _, found in self._candidates(queries, count):
            near = found.sort(dim=1).values
            query = torch.arange(len(chunk), device=near.device).repeat_interleave(near.shape[1])
            distance = self._distances(chunk, near.flatten(), query).view(near.shape)
            distance, order = distance.sort(dim=1, stable=True)
            near = near.gather(1, order[:, :count])
            near[~chunk.any(dim=1)] = torch.arange(count, device=near.device)
            distances[asked], rows[asked] = distance[:, :count], near
        return distances, rows

    def _candidates(
        self, queries: Tensor, k: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Some of the queries at a time, with what float32 takes for their nearest rows.

        Given are their numbers ``(n,)``, they themselves ``(n, D)``, a bound ``(n, 1)`` on the
        rounding of their similarities, the similarities ``(n, K)``, highest first, and their rows.
        A query comes again, with more rows, where one that was not found may be nearer than the
        k-th. Not so a query of zeros: all rows are as far from it.
        """
        count = len(self)
        step = max(_SIMILARITIES // count, 1)
        similarity = self._rows.new_empty(min(step, len(queries)), -(-count // _GROUP) * _GROUP)
        similarity[:, count:] = -torch.inf
        for start in range(0, len(queries), step):
            chunk = queries[start : start + step].detach().to(self.bank.device)
            rows = similarity[: len(chunk)]
            error = self._similarity(chunk, out=rows[:, :count])
            if not math.isfinite(error.sum().item()):
                raise UsageError("Queries hold NaN or infinity. Check the images and the network.")
            numbers = torch.arange(len(chunk), device=chunk.device)
            more, parts = _MORE, [numbers]
            while parts:
                last = min(k + more, count)
                uncertain = [numbers[:0]]
                for part in parts:
                    # A slice where it is all of them: numbers would copy everything.
                    some = slice(None) if len(part) == len(chunk) else part
                    similar, near = most_similar(rows[some], last)
                    yield start + part, chunk[some], error[some], similar, near
                    unsure = similar[:, k - 1] - similar[:, -1] <= 2 * error[some, 0]
                    uncertain.append(part[unsure & chunk[some].any(dim=1)])
                more *= 8
                again = torch.cat(uncertain) if last < count else numbers[:0]
                size = max(_MEASURED // min(k + more, count), 1)
                parts = [again[i : i + size] for i in range(0, len(again), size)]

    def _similarity(self, queries: Tensor, out: Tensor) -> Tensor:
        """Write what orders the rows like their similarity; a bound ``(N, 1)`` on its rounding."""
        moved = self._moved(queries)
        torch.addmm(self._handicap, moved, self._rows.mT, out=out)
        lengths: Tensor = torch.linalg.vector_norm(moved, dim=1, keepdim=True)
        unit = (self.bank.shape[1] + 8) * 2**-24
        return lengths.mul_(unit * self._radius).add_(unit * self._offset)

    def _moved(self, queries: Tensor) -> Tensor:
        """The queries seen from the centre, subtracted in their own precision, as float32."""
        if self._centre is None:
            return queries.to(torch.float32)
        moved = queries.new_empty(queries.shape, dtype=torch.float32)
        for part in row_slices(len(queries), queries.shape[1], queries.device):
            moved[part] = queries[part] - self._centre
        return moved

    def _kth_of(
        self, k: int, queries: Tensor, error: Tensor, similarity: Tensor, near: Tensor
    ) -> Tensor:
        """The k-th least distance, of neighbours ``(N, K)`` that are in order but for an error."""
        # Both the k-th and the other may be wrong by that.
        unsure = (similarity - similarity[:, k - 1 : k]).abs_() <= 2 * error
        if int(unsure.sum()) == len(queries):  # nearly always: of each query the k-th alone
            return self._distances(queries, near[:, k - 1])
        query, column = torch.nonzero(unsure, as_tuple=True)
        distance = queries.new_full(near.shape, torch.inf, dtype=torch.float64)
        distance[:, : k - 1] = -torch.inf
        distance[query, column] = self._distances(queries, near[query, column], query)
        return distance.sort(dim=1).values[:, k - 1]

    def _distances(self, queries: Tensor, row: Tensor, query: Tensor | None = None) -> Tensor:
        """1 - a·b in float64 of pairs of a query and a row of the bank, given by number ``(P,)``.

        Without ``query`` the pairs are each query's in turn. From the difference: 2 (1 - a·b) is
        its squared length, and what the squared lengths of a and b lack to 1, which is 1 for a row
        of zeros.
        """
        doubled = queries.new_empty(len(row), dtype=torch.float64)
        for part in row_slices(len(row), self.bank.shape[1], self.bank.device):
            a = queries[part] if query is None else queries.index_select(0, query[part])
            apart = a.to(torch.float64) - self.bank.index_select(0, row[part])
            torch.sum(apart.square_(), dim=1, out=doubled[part])
        missing = _missing(queries)
        missing = missing if query is None else missing.index_select(0, query)
        missing += self._missing.index_select(0, row)
        return doubled.add_(_beyond_rounding(missing)).div_(2)


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
    groups = similarity.shape[1] // _GROUP
    if count >= groups or similarity.numel() <= _FEW:
        values, place = similarity.topk(count, dim=1)
        return values, place
    grouped = similarity.view(len(similarity), _GROUP, groups)
    best = grouped.amax(dim=1).topk(count, dim=1, sorted=False).indices
    starts = torch.arange(0, similarity.shape[1], groups, device=best.device)
    members = (best[:, None] + starts[:, None]).flatten(1)
    values, place = similarity.gather(1, members).topk(count, dim=1)
    return values, members.gather(1, place)


def _missing(rows: Tensor) -> Tensor:
    """What the squared length of each row ``(N, D)`` lacks to 1, ``(N,)`` float64."""
    parts = row_slices(len(rows), rows.shape[1], rows.device)
    return 1 - torch.cat([rows[part].to(torch.float64).square().sum(dim=1) for part in parts])


def _beyond_rounding(missing: Tensor) -> Tensor:
    """The same, and 0 where that is no more than rounding."""
    return hardshrink(missing, ROUNDING)
