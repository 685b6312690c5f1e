r"""Conformal test martingales: bets against the p-values of a stream, in log space.

Under the null hypothesis the p-values of ``goen.functional.online_conformal`` are independent and
uniform. A bet is a density b on (0, 1): it multiplies the capital that is staked on it by b(p),
whose mean is 1. Capital that starts at 1 and can only be multiplied by bets is a nonnegative
martingale, so (Ville's inequality)

    P(it ever reaches 1 / alpha) <= alpha

whatever the bets are. They decide how soon a change is found. ``log_bets`` has those of goen: on
high and on low scores, strongly or in a small share of the images, and on parts of (0, 1).

A bet that is held while nothing happens loses capital, in the end all of it. So only half of the
capital is staked at the first image. The rest is kept, and a little of it is staked at
every image (*sleepers*): a change at image v is met by stakes that are as old as the change. The
weights of the start times sum to 1, so the whole is one martingale. ``start_weights`` has them.

``StartMixture`` with ``starts="restart"`` stakes 1 at every image instead. Its capital is the
Shiryaev-Roberts statistic R_n, the sum of the martingales that start at images 1 to n. R_n - n is
a martingale, so P(R reaches c within n images) <= n / c, and the mean time until it does is at
least c / 2 for any number of such statistics whose 1 / c sum to that of one.

Paper: Vovk, Gammerman & Shafer, "Algorithmic Learning in a Random World", 2nd edition 2022,
chapters 8 and 9; Vovk et al. 2021, "Retrain or not retrain: conformal test martingales for
change-point detection".
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from goen.functional.ranking import Floats

Starts = Literal["once", "restart"]
Direction = Literal["higher", "lower", "shape"]

# A share of the images whose p-values have the density k p^(k-1), the others uniform: (share, k).
# The first three are for changes of all images, the last two for a few that are far out.
_TAILS = ((1.0, 0.5), (1.0, 0.75), (1.0, 0.9), (0.1, 0.1), (0.01, 0.1))
# An interval that this share of the images has moved into: (share, from, to).
_INTERVALS = (
    *((0.1, i / 4, (i + 1) / 4) for i in range(4)),
    *((0.1, i / 8, (i + 1) / 8) for i in range(8)),
    (0.2, 0.25, 0.75),
)

_HIGHER: tuple[Direction, ...] = ("higher",)
_LOWER: tuple[Direction, ...] = ("lower",)
_SHAPE: tuple[Direction, ...] = ("shape",)
DIRECTIONS = _HIGHER * len(_TAILS) + _LOWER * len(_TAILS) + _SHAPE * len(_INTERVALS)
"""Of each bet: on scores that are higher, on lower ones, or on another shape."""
NUM_BETS = len(DIRECTIONS)

# Until this image the start times are nearly equally likely, later ones ever less. With 1,000 a
# mild change after a million images took twice as long to be found as one after a thousand; with
# 100,000 both took equally long, as long as the slower of the two.
_EVEN_IMAGES = 10_000
# Sums restart after so many images, so that they stay small and keep their digits. The least
# bet is 0.5, so within a block no capital falls below exp(-178) of what it was.
_BLOCK = 256


def log_bets(p_values: Floats, complements: Floats) -> Floats:
    """The logarithm of each bet at each p-value, ``(..., K)``.

    Args:
        p_values: ``(...)``, above 0.
        complements: 1 - p, above 0, exact where p is near 1.

    Example:
        >>> bets = np.exp(log_bets(np.array([0.01]), np.array([0.99])))[0]
        >>> round(float(bets[0]), 6)  # 0.5 · 0.01 ** -0.5
        5.0
    """
    share, power = np.array(_TAILS).T
    tails = np.log(np.stack([p_values, complements], axis=-1))[..., None]
    gains = np.log1p(share * (power * np.exp((power - 1) * tails) - 1))
    stake, low, high = np.array(_INTERVALS).T
    p = np.asarray(p_values)[..., None]
    inside = (p >= low) & ((p < high) | (high == 1.0))
    won, lost = np.log1p(stake * (1 / (high - low) - 1)), np.log1p(-stake)
    by_tail = gains.reshape(*gains.shape[:-2], 2 * len(_TAILS))
    return np.concatenate([by_tail, np.where(inside, won, lost)], axis=-1)


def bet_weights() -> Floats:
    """The share of the capital on each bet, ``(K,)``: half on the tails, half on the intervals."""
    tails, intervals = 2 * len(_TAILS), len(_INTERVALS)
    return np.repeat([0.5 / tails, 0.5 / intervals], [tails, intervals])


class StartWeights(NamedTuple):
    """What is staked at each of B images, and what is kept after it, as logarithms."""

    staked: Floats
    kept: Floats


def first_stake(starts: Starts) -> float:
    """What is staked at the first image."""
    return 0.5 if starts == "once" else 1.0


def start_weights(starts: Starts, first: int, count: int) -> StartWeights:
    """The stakes of images ``first`` to ``first + count - 1``, counted from 1.

    With ``once`` the capital is 1: half of it is staked at image 1, and what is kept after image n
    is 0.5 / log2(2 + (n - 1) / 10,000). With ``restart`` 1 is staked at every image and nothing
    kept. The stake of image 1 is ``first_stake`` and not part of the result.

    Example:
        >>> staked, kept = start_weights("once", 1, 1000)
        >>> round(float(np.exp(staked).sum() + np.exp(kept[-1])), 12)
        0.5
    """
    number = np.arange(first, first + count)
    later = number > 1
    if starts == "restart":
        return StartWeights(np.where(later, 0.0, -np.inf), np.full(count, -np.inf))
    kept = np.log2(2 + (number - 1) / _EVEN_IMAGES)
    before = np.log2(2 + np.maximum(number - 2, 0) / _EVEN_IMAGES)
    grown = np.log1p(1 / (2 * _EVEN_IMAGES + number - 2)) / math.log(2)
    staked = np.where(later, np.log(0.5 * grown / (kept * before)), -np.inf)
    return StartWeights(staked, np.log(0.5 / kept))


@dataclass(frozen=True)
class Path:
    """What B images did to J streams, after each image: arrays ``(B, J)``.

    Attributes:
        log_capital: the logarithm of the capital.
        since: the image from which on the best single bet has gained most: the estimated first
            image after a change, if there was one.
        bet: that bet's number.
    """

    log_capital: Floats
    since: NDArray[np.int64]
    bet: NDArray[np.int64]


class StartMixture:
    r"""The capital of J streams, each spread over all bets and all start times.

    With b_k the bets, w_k their weights and \pi_n the stake of image n,

        S_k(n) = b_k(p_n) (S_k(n-1) + w_k \pi_n),        M(n) = kept(n) + sum over k of S_k(n)

    The result is the same, bit for bit, however a stream is divided into calls of ``advance``.

    Attributes:
        capital: log S at the last multiple of 256 images, ``(J, K)``.
        joined: what has been staked since then, relative to that capital, ``(J, K)``.
        gains: the sum of log b since then, ``(J, K)``.
        lowest: the least earlier value of that sum, ``(J, K)``.
        since: the image after that lowest value, ``(J, K)``.
        images: how many images were seen.

    Args:
        streams: J.
        starts: ``once`` for a martingale, ``restart`` for the Shiryaev-Roberts statistic.
    """

    def __init__(self, streams: int, starts: Starts) -> None:
        self.starts: Starts = starts
        stake = math.log(first_stake(starts)) + np.log(bet_weights())
        self.capital = np.tile(stake, (streams, 1))
        self.joined = np.ones_like(self.capital)
        self.gains = np.zeros_like(self.capital)
        self.lowest = np.zeros_like(self.capital)
        self.since = np.ones(self.capital.shape, dtype=np.int64)
        self.images = 0

    def advance(self, bets: Floats) -> Path:
        """Multiply the stakes by the bets ``(B, J, K)`` of the next B images, as logarithms."""
        parts, start = [], 0
        while start < len(bets):
            stop = min(len(bets), start + _BLOCK - self.images % _BLOCK)
            parts.append(self._within_block(bets[start:stop]))
            start = stop
        shape = (0, len(self.capital))
        return Path(
            np.concatenate([np.zeros(shape), *(part.log_capital for part in parts)]),
            np.concatenate([np.zeros(shape, np.int64), *(part.since for part in parts)]),
            np.concatenate([np.zeros(shape, np.int64), *(part.bet for part in parts)]),
        )

    def _within_block(self, bets: Floats) -> Path:
        weights = start_weights(self.starts, self.images + 1, len(bets))
        # Accumulated one after the other, so that it does not matter where a call ends.
        gains = np.add.accumulate(np.concatenate([self.gains[None], bets]))
        staked = weights.staked[:, None, None] + np.log(bet_weights())
        joining = np.exp(staked - gains[:-1] - self.capital)
        joined = np.add.accumulate(np.concatenate([self.joined[None], joining]))[1:]
        capital = self.capital + np.log(joined) + gains[1:]
        path = self._best_bets(gains, _log_sum(capital, weights.kept))
        self.images += len(bets)
        self.gains, self.joined = gains[-1], joined[-1]
        if self.images % _BLOCK == 0:
            self.capital, self.lowest = capital[-1], self.lowest - gains[-1]
            self.gains, self.joined = np.zeros_like(self.gains), np.ones_like(self.joined)
        return path

    def _best_bets(self, gains: Floats, log_capital: Floats) -> Path:
        """The path with its best single bets: largest sum of log b over the images since a start.

        A start before image n + 1 has gained gains[n] - (the sum before the start), so the best
        start of a bet follows the lowest sum.
        """
        known = np.concatenate([self.lowest[None], gains[:-1]])
        lowest = np.minimum.accumulate(known)
        number = self.images + 1 + np.arange(len(known) - 1)[:, None, None]
        fallen = np.where(known[1:] < lowest[:-1], number, 0)
        since = np.maximum.accumulate(np.concatenate([self.since[None], fallen]))[1:]
        best = np.argmax(gains[1:] - lowest[1:], axis=2)
        self.lowest, self.since = lowest[-1], since[-1]
        chosen = np.take_along_axis(since, best[..., None], axis=2)[..., 0]
        return Path(log_capital, chosen, best)


def _log_sum(capital: Floats, kept: Floats) -> Floats:
    """log(exp(kept) + sum of exp(capital) over its last axis)."""
    top = np.maximum(capital.max(axis=2), kept[:, None])
    total = np.exp(capital - top[..., None]).sum(axis=2) + np.exp(kept[:, None] - top)
    return np.asarray(top + np.log(total))


def simple_jumper(
    p_values: Floats, *, jump: float = 0.01, slopes: tuple[float, ...] = (-1.0, 0.0, 1.0)
) -> Floats:
    """The log capital of the simple jumper after each p-value, ``(N,)``.

    The capital is spread over the bets 1 + slope · (p - 1/2). After each image a share ``jump`` of
    it is spread evenly again. It is the usual first choice. Its bets are weak where few images are
    far out, and while nothing happens its capital shrinks by a constant factor per image.

    Example:
        >>> [round(float(x), 4) for x in np.exp(simple_jumper(np.array([0.1, 0.1])))]
        [1.0, 1.1056]
    """
    capital = np.full(len(slopes), -math.log(len(slopes)))
    log_capital = np.empty(len(p_values))
    for number, p in enumerate(p_values):
        capital = capital + np.log1p(np.array(slopes) * (p - 0.5))
        log_capital[number] = total = np.logaddexp.reduce(capital)
        capital = np.logaddexp(
            capital + math.log1p(-jump), total + math.log(jump) - math.log(len(slopes))
        )
    return log_capital
