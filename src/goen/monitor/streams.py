"""The streams of numbers that a monitor follows: ranks, p-values and e-values of each."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goen.errors import FitError
from goen.functional.martingales import DIRECTIONS, Path, StartMixture, Starts, log_bets
from goen.functional.online_conformal import ScoreCounts, smoothed_p_values, uniforms
from goen.functional.ranking import Floats
from goen.monitor.state import Batch, ChangePoint

LEAST_HELD_OUT = 20
# The held-out scores that only set the resolution: enough to know its order of magnitude.
_SHARE, _MOST = 20, 20
_RESOLUTION = 512
# Far from the numbers that break ties, which begin at 0.
_ORDER_NUMBERS = 1 << 62


@dataclass(frozen=True)
class Stream:
    """One number per image.

    Attributes:
        name: of the score, cue or class.
        weight: its share of the false alarms that are allowed.
        step: scores are rounded to so wide cells; 0 for no rounding.
        origin: the centre of one of the cells.
    """

    name: str
    weight: float
    step: float = 0.0
    origin: float = 0.0

    def __post_init__(self) -> None:
        finite = 0 <= self.step < math.inf and math.isfinite(self.origin)
        if not 0 < self.weight <= 1 or not finite:
            raise ValueError(f"{self.name} has weight {self.weight} and step {self.step}")

    def rounded(self, values: Floats) -> Floats:
        """The numbers of the cells, 0 that of the origin."""
        if not self.step:
            return values
        with np.errstate(over="ignore"):  # beyond the largest number is as far out as infinity
            return np.rint((values - self.origin) / self.step)


class Streams:
    """J streams of numbers, and the e-value of each against being exchangeable with its held-out
    numbers.

    The streams share the images but not the order of their scores, so their martingales have
    different pasts, and a mean of them is no martingale. Each has its own alarm line instead, and
    the union bound holds for all together.

    Attributes:
        streams: the J streams.
        counts: the scores seen so far, held-out ones included, one multiset per stream.
        mixture: the capital of the bets.
        change_points: where a stream's e-value reached the alarm line.
        restarted_at: the images that were seen before the test began.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        counts: Sequence[ScoreCounts],
        *,
        seed: int,
        starts: Starts,
        images: int = 0,
    ) -> None:
        self.streams, self.counts, self.seed = tuple(streams), list(counts), seed
        self.change_points: list[ChangePoint | None] = [None] * len(self.streams)
        self.restarted_at = images
        self.mixture = StartMixture(len(self.streams), starts)
        self.log_e_value: Floats = np.log([stream.weight for stream in self.streams])

    @property
    def images(self) -> int:
        """How many were seen."""
        return self.restarted_at + self.mixture.images

    @property
    def names(self) -> tuple[str, ...]:
        """Of the streams, in order."""
        return tuple(stream.name for stream in self.streams)

    def add(self, values: Mapping[str, Floats], alarm_line: float) -> Batch:
        """Rank the next B images, bet on their p-values, and note which streams reach the line."""
        count = len(next(iter(values.values())))
        noise = uniforms(self.seed, self.images, count)
        both = [
            smoothed_p_values(counts.add(stream.rounded(values[stream.name])), noise)
            for stream, counts in zip(self.streams, self.counts, strict=True)
        ]
        p, complement = (np.stack(part, axis=1) for part in zip(*both, strict=True))
        before = self.images
        path = self.mixture.advance(log_bets(p, complement))
        log_e_values = path.log_capital + np.log([stream.weight for stream in self.streams])
        self._find(path, log_e_values >= alarm_line, before)
        if count:
            self.log_e_value = log_e_values[-1]
        return Batch(p, log_e_values)

    def _find(self, path: Path, reached: NDArray[np.bool_], before: int) -> None:
        for stream in range(len(self.streams)):
            if self.change_points[stream] is None and reached[:, stream].any():
                row = int(reached[:, stream].argmax())
                self.change_points[stream] = ChangePoint(
                    at=before + row + 1,
                    since=self.restarted_at + int(path.since[row, stream]),
                    direction=DIRECTIONS[path.bet[row, stream]],
                )

    def restarted(self) -> "Streams":
        """The same streams and scores, with e-values of 1."""
        return Streams(
            self.streams,
            self.counts,
            seed=self.seed,
            starts=self.mixture.starts,
            images=self.images,
        )


def begin(
    held_out: Mapping[str, Floats],
    weights: Mapping[str, float],
    labels: Collection[str],
    *,
    seed: int,
    starts: Starts,
) -> Streams:
    """Streams that have seen the held-out images only.

    A few held-out images, drawn at random, set the resolution of each stream and are not ranked:
    the others stay exchangeable with the images to come. Scores are rounded to about a
    five-hundredth of the interquartile range. So an image scored alone and in a batch has the same
    rank, and the number of distinct scores that are kept hardly grows with the number of images.
    The two closest of the few are in the middle of a cell: if many images are the same, such as a
    test card, it is they, and no rounding of the network's sums moves them to the next cell.

    Args:
        held_out: ``(n,)`` of each stream, of the same images in the same order.
        weights: of each stream; they sum to 1.
        labels: the streams that are class numbers, which are not rounded.
        seed: of the random numbers.
        starts: see ``StartMixture``.
    """
    size = len(next(iter(held_out.values())))
    if size < LEAST_HELD_OUT:
        raise FitError(
            f"A monitor needs at least {LEAST_HELD_OUT} held-out scores, got {size}. Some hundreds "
            "find a change sooner."
        )
    order = np.argsort(uniforms(seed, _ORDER_NUMBERS, size), kind="stable")
    aside = min(max(size // _SHARE, 2), _MOST)
    streams, counts = [], []
    for name, values in held_out.items():
        grid = (0.0, 0.0) if name in labels else _grid(values[order[:aside]])
        stream = Stream(name, weights[name], *grid)
        streams.append(stream)
        counts.append(ScoreCounts.of(stream.rounded(values[order[aside:]])))
    return Streams(streams, counts, seed=seed, starts=starts)


def _grid(values: Floats) -> tuple[float, float]:
    """The width of a cell, a power of two near a five-hundredth of the spread, and its origin."""
    finite = np.sort(values[np.isfinite(values)])
    if len(finite) < 2:
        return 0.0, 0.0
    low, quarter, three_quarters, high = np.quantile(finite, [0, 0.25, 0.75, 1])
    spread = (three_quarters - quarter) or (high - low)
    if not spread > np.finfo(np.float64).tiny * _RESOLUTION:
        return 0.0, 0.0
    step = 2.0 ** math.floor(math.log2(spread / _RESOLUTION))
    return step, float(finite[np.diff(finite).argmin()])
