"""Conformal p-values of a stream: each score is ranked among the held-out ones and all before it.

With N earlier scores, held-out ones included, and U uniform on (0, 1), the n-th score s has

    p = (#{earlier > s} + U · (#{earlier = s} + 1)) / (N + 1)

If the scores of the stream are exchangeable with each other and with the held-out scores, these
p-values are independent and uniform on (0, 1), with ties or without. p-values against the held-out
scores alone are not: all of them depend on the same few scores, and a test of many such p-values
finds the error of that sample.

Paper: Vovk, Gammerman & Shafer, "Algorithmic Learning in a Random World", 2005: smoothed conformal
predictors in the online mode.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from goen.errors import UsageError
from goen.functional.ranking import Floats

Counts = NDArray[np.int64]

# Scores compared with each other at once: each with each, so the cost grows with the square.
_AT_ONCE = 256
_BITS = 52  # of a uniform number: it and its complement are exact in float64
_WORDS = 4  # 64-bit numbers in one block of Philox


class Ranked(NamedTuple):
    """The place of each of B scores among all earlier ones.

    Attributes:
        above: how many earlier scores are higher.
        equal: how many are equal.
        earlier: how many there are.
    """

    above: Counts
    equal: Counts
    earlier: Counts


class ScoreCounts:
    """A multiset of scores that counts, for each new one, how many are above it and equal to it.

    Distinct scores are kept once, sorted, with their counts. Memory grows with the number of
    distinct scores; adding B scores to D distinct ones takes O(B log D + D) operations, of which
    those of order D are one pass over two arrays.

    Args:
        values: ``(D,)``, ascending, no two equal.
        counts: ``(D,)``, how often each occurs.

    Example:
        >>> seen = ScoreCounts.of([1.0, 2.0, 2.0])
        >>> seen.add(np.array([2.0, 2.0, 0.0]))
        Ranked(above=array([0, 0, 5]), equal=array([2, 3, 0]), earlier=array([3, 4, 5]))
        >>> len(seen)
        6
    """

    def __init__(self, values: Floats, counts: Counts) -> None:
        if values.shape != counts.shape or values.ndim != 1 or (counts < 1).any():
            raise ValueError("each value should have a count of at least 1")
        if not (values[1:] > values[:-1]).all() or np.isnan(values).any():
            raise ValueError("the values should ascend")
        self.values, self.counts = values, counts

    @classmethod
    def of(cls, scores: NDArray[np.float64] | list[float]) -> Self:
        """The multiset of these scores."""
        values, counts = np.unique(np.asarray(scores, dtype=np.float64), return_counts=True)
        return cls(values, counts.astype(np.int64))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def add(self, scores: Floats) -> Ranked:
        """Rank each score among all before it, those of the same call included, and add it.

        The result is the same however a stream is divided into calls.

        Args:
            scores: ``(B,)``, without NaN; infinities are scores like others.
        """
        starts = range(0, max(len(scores), 1), _AT_ONCE)
        parts = [self._add(scores[start : start + _AT_ONCE]) for start in starts]
        return Ranked(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _add(self, scores: Floats) -> Ranked:
        at_most = np.concatenate([[0], np.cumsum(self.counts)])
        left = np.searchsorted(self.values, scores, side="left")
        right = np.searchsorted(self.values, scores, side="right")
        before = np.tri(len(scores), k=-1, dtype=bool)
        above = at_most[-1] - at_most[right]
        above += (before & (scores > scores[:, None])).sum(axis=1)
        equal = at_most[right] - at_most[left]
        equal += (before & (scores == scores[:, None])).sum(axis=1)
        self._insert(scores)
        return Ranked(above, equal, at_most[-1] + np.arange(len(scores)))

    def _insert(self, scores: Floats) -> None:
        values, counts = np.unique(scores, return_counts=True)
        place = np.searchsorted(self.values, values)
        known = np.zeros(len(values), dtype=bool)
        inside = place < len(self.values)
        known[inside] = self.values[place[inside]] == values[inside]
        self.counts[place[known]] += counts[known]
        if not known.all():
            self.values = np.insert(self.values, place[~known], values[~known])
            self.counts = np.insert(self.counts, place[~known], counts[~known])


def smoothed_p_values(ranked: Ranked, uniforms: Floats) -> tuple[Floats, Floats]:
    """The p-values of ranked scores and, exactly, their complements 1 - p; both above 0.

    A small p-value belongs to a high score, a small complement to a low one.

    Args:
        ranked: from ``ScoreCounts.add``, ``(B,)``.
        uniforms: ``(B,)``, in (0, 1), independent of the scores.

    Example:
        >>> p, complement = smoothed_p_values(ScoreCounts.of([1.0, 2.0]).add(np.array([2.0])), 0.5)
        >>> p.tolist(), complement.tolist()  # (0 + 0.5 · 2) / 3
        ([0.3333333333333333], [0.6666666666666666])
    """
    size = ranked.earlier + 1
    below = ranked.earlier - ranked.above - ranked.equal
    p = (ranked.above + uniforms * (ranked.equal + 1)) / size
    complement = (below + (1 - uniforms) * (ranked.equal + 1)) / size
    return p, complement


def uniforms(seed: int, start: int, count: int) -> Floats:
    """Numbers ``start``, ``start + 1``, ... of the seed's stream of uniform numbers in (0, 1).

    The stream is that of the counter-based generator Philox, so any part of it can be had without
    the part before. The numbers are odd multiples of 2 ** -53: their complements are exact, and
    none is 0 or 1.

    Example:
        >>> bool((uniforms(7, 0, 10)[6:] == uniforms(7, 6, 4)).all())
        True
    """
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise UsageError(f"A seed is a whole number from 0 to 2^64 - 1, got {seed!r}.")
    generator = np.random.Philox(key=seed, counter=start // _WORDS)
    skip = start % _WORDS
    words = generator.random_raw(skip + count)[skip:]
    return np.asarray(((words >> np.uint64(64 - _BITS)).astype(np.float64) + 0.5) * 2.0**-_BITS)
