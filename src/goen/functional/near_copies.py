r"""Near-copies among rows of features: are held-out rows nearer to others than chance has them?

A conformal guarantee needs held-out rows that are exchangeable with new ones. A held-out row that
is a training image saved again, or the next frame of the same video, is not: its features lie
nearer to another row's than those of separate images do. What separate images have is measured on
the training rows themselves, as the distance of each to the nearest other one.

Rows are compared as unit vectors after one random orthonormal projection, which is drawn before any
row is seen. Separate held-out and training rows are exchangeable in any such space, so the test is
exact in each; in fewer dimensions it only finds less.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from goen.functional.neighbours import NeighbourIndex

Rows = NDArray[np.int64]
MOST_HELD_OUT = 1000
"""Held-out rows that are compared."""
# Of the distances between training rows: what lies below is near.
_QUANTILE = 0.01
# The probability that a held-out set of separate images is taken for one with copies.
_LEVEL = 1e-4
# Numbers kept of all training rows together, 128 MB, and of one row at most and at least.
_NUMBERS = 2**25
_WIDEST, _NARROWEST = 256, 8
# Training rows that are compared with all others, and drawn to be compared among themselves.
_REFERENCE = 2000


class Sketches:
    """Rows of features in few numbers each, in bounded memory.

    Of more rows fewer numbers are kept of each: the last columns of a random projection are left
    out.

    Args:
        width: of the rows.
    """

    def __init__(self, width: int) -> None:
        self.columns = min(width, _WIDEST)
        drawn = torch.Generator().manual_seed(0)
        gaussian = torch.randn(width, self.columns, generator=drawn, dtype=torch.float64)
        self._projection = torch.linalg.qr(gaussian).Q.to(torch.float32)
        self._parts: list[Tensor] = []
        self._count = 0

    def add(self, rows: Tensor) -> None:
        """Add rows ``(n, width)``."""
        self._count += len(rows)
        while self._count * self.columns > _NUMBERS and self.columns > _NARROWEST:
            self.columns = max(self.columns // 2, _NARROWEST)
            self._parts = [part[:, : self.columns].clone() for part in self._parts]
        if not self.is_full:
            self._parts.append(self._project(rows))

    @property
    def is_full(self) -> bool:
        """Whether there were more rows than can be kept."""
        return self._count * self.columns > _NUMBERS

    def _project(self, rows: Tensor) -> Tensor:
        return torch.mm(rows.to(torch.float32), self._projection[:, : self.columns])

    def unit_rows(self) -> Tensor:
        """All rows, ``(N, columns)``, of unit length."""
        return normalize(torch.cat(self._parts), dim=1)

    def unit_rows_of(self, others: Tensor) -> Tensor:
        """Other rows ``(n, width)`` in the same few numbers."""
        return normalize(self._project(others), dim=1)


class Near(NamedTuple):
    """Held-out rows that lie nearer to another row than nearly all training rows do.

    Attributes:
        rows: their numbers ``(a,)``.
        nearest: ``(a,)``, the row that each lies near.
        is_chance: whether separate images may give so many.
    """

    rows: Rows
    nearest: Rows
    is_chance: bool


@dataclass(frozen=True, eq=False)
class NearCopies:
    """Held-out rows that are near-copies of training rows, or of each other.

    Attributes:
        compared: how many held-out rows were compared.
        of_training: those near a training row; ``nearest`` are training rows.
        of_each_other: those near another held-out row.
    """

    compared: int
    of_training: Near
    of_each_other: Near


def find_near_copies(
    training: Tensor,
    training_labels: Rows,
    held_out: Tensor,
    held_out_labels: Rows,
    candidates: Rows | None = None,
) -> NearCopies:
    r"""Held-out rows that lie nearer to a training row, or to each other, than chance has them.

    Near is what lies strictly below the 1 % quantile of the distances between training rows of the
    same predicted classes, so that classes of which more images are held out, or which lie closer
    together, weigh the same on both sides. For the distance of a held-out row to all training rows
    but one of its class, it is the quantile of that of a training row to all others; for the
    distance to the other held-out rows, that within sets of as many training rows, drawn at random.

    So many are no chance if separate images give as many with a probability below 1e-4. Before the
    r-th nearest of m training rows come a or more of n held-out ones with the negative
    hypergeometric probability. Rows near the same training row count as one, and so do two
    held-out rows that may be each other's nearest: one chance has brought them there.

    Args:
        training: unit vectors ``(N, K)``, without copies of one image.
        training_labels: ``(N,)``, predicted.
        held_out: unit vectors ``(n, K)``. At most a thousand of them are compared, and of each
            class no more than there are training rows.
        held_out_labels: ``(n,)``, predicted.
        candidates: the held-out rows that are compared, all if not given.
    """
    drawn = np.random.RandomState(0)
    candidates = np.arange(len(held_out)) if candidates is None else candidates
    compared = _compared(training_labels, held_out_labels, candidates, drawn)
    sets = _same_classes(training_labels, held_out_labels[compared], drawn)
    if not sets or len(compared) < 2:
        none = Near(compared[:0], compared[:0], is_chance=True)
        return NearCopies(0, none, none)
    index, rows = NeighbourIndex(training), held_out[compared]
    # A training row is not compared with itself, so a held-out row is not with one of its class: of
    # a class with one training row all others are of other classes.
    left_out = _one_of_class(training_labels, held_out_labels[compared], drawn)
    distances, nearest = _nearest_other(index, rows, left_out)
    chosen = np.concatenate(sets)
    reference, _ = _nearest_other(index, training[chosen], chosen)
    of_training = _near(distances, compared, nearest, reference)
    apart, other = _within(rows)
    within = [_within(training[of_set])[0] for of_set in sets]
    of_each_other = _near(apart, compared, compared[other], np.concatenate(within), in_pairs=True)
    return NearCopies(len(compared), of_training, of_each_other)


def _compared(labels: Rows, held_out: Rows, candidates: Rows, drawn: np.random.RandomState) -> Rows:
    """Held-out rows to compare: a random thousand, of no class more than has training rows."""
    order = drawn.permutation(candidates)[:MOST_HELD_OUT]
    there = np.bincount(labels, minlength=int(held_out.max(initial=0)) + 1)
    kept = [order[held_out[order] == label][: there[label]] for label in np.unique(held_out)]
    return np.sort(np.concatenate([order[:0], *kept]))


def _same_classes(labels: Rows, wanted: Rows, drawn: np.random.RandomState) -> list[Rows]:
    """Disjoint random sets of rows, each with as many of every class as ``wanted`` has."""
    counts = dict(zip(*np.unique(wanted, return_counts=True), strict=True))
    if not counts:
        return []
    of_class = {label: drawn.permutation(np.flatnonzero(labels == label)) for label in counts}
    enough = min(len(of_class[label]) // count for label, count in counts.items())
    return [
        np.concatenate([of_class[c][i * count : (i + 1) * count] for c, count in counts.items()])
        for i in range(min(enough, -(-_REFERENCE // len(wanted))))
    ]


def _one_of_class(labels: Rows, wanted: Rows, drawn: np.random.RandomState) -> Rows:
    """For each wanted label a random row that has it."""
    order = np.argsort(labels, kind="stable")
    first, end = (labels[order].searchsorted(wanted, side) for side in ("left", "right"))
    return order[first + (drawn.random_sample(len(wanted)) * (end - first)).astype(np.int64)]


def _within(rows: Tensor) -> tuple[NDArray[np.float64], Rows]:
    """The distance of each row to the nearest other one, and which that is."""
    return _nearest_other(NeighbourIndex(rows), rows, np.arange(len(rows)))


def _nearest_other(
    index: NeighbourIndex, queries: Tensor, left_out: Rows
) -> tuple[NDArray[np.float64], Rows]:
    """The distance of each query to the nearest row but the one left out, and which row it is."""
    found, near = index.nearest(queries, 2)
    second = (near[:, 0] == torch.from_numpy(left_out)).long()[:, None]
    return found.gather(1, second)[:, 0].numpy(), near.gather(1, second)[:, 0].numpy()


def _near(
    distances: NDArray[np.float64],
    numbers: Rows,
    nearest: Rows,
    reference: NDArray[np.float64],
    *,
    in_pairs: bool = False,
) -> Near:
    """The rows below the quantile of the reference, and whether they are more than chance has.

    Args:
        distances: of the held-out rows.
        numbers: of the same rows.
        nearest: of the same rows.
        reference: distances between training rows.
        in_pairs: whether the nearest are held-out rows, too: then two count as one.
    """
    from scipy.stats import hypergeom  # slow to import

    rank = max(int(_QUANTILE * len(reference)), 1)
    below = distances < np.partition(reference, rank - 1)[rank - 1]
    share = 2 if in_pairs else 1
    near = int(below.sum()) if in_pairs else len(np.unique(nearest[below]))
    n, m, a = (count // share for count in (len(distances), len(reference), near))
    before = max(rank // share, 1) - 1
    # That a held-out rows come before the r-th of the reference: among the first a + r - 1 of all
    # rows at most r - 1 are of the reference.
    chance = hypergeom.cdf(before, n + m, m, a + before)
    return Near(numbers[below], nearest[below], is_chance=bool(chance >= _LEVEL))
