"""Martingales against crepes, slow loops, integrals and their own guarantee."""

from itertools import pairwise

import numpy as np
import pytest
from crepes.martingales import EpsilonBettingFunction, SimpleJumper, SleeperStayer
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad

from goen.functional import martingales
from goen.functional.martingales import (
    DIRECTIONS,
    NUM_BETS,
    StartMixture,
    Starts,
    StartWeights,
    bet_weights,
    first_stake,
    log_bets,
    simple_jumper,
    start_weights,
)

Floats = NDArray[np.float64]


def uniform(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).random(shape)


def changed(length: int, seed: int = 0) -> Floats:
    """Uniform p-values, smaller ones from the middle on."""
    p = uniform(length, seed=seed)
    p[length // 2 :] **= 1.5
    return p


# -- bets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bet", range(NUM_BETS))
def test_each_bet_is_a_density(bet: int) -> None:
    def value(p: float) -> float:
        return float(np.exp(log_bets(np.array(p), np.array(1 - p))[bet]))

    # In the logarithm of p near 0 and of 1 - p near 1, where bets have poles.
    def near_zero(x: float) -> float:
        p = np.exp(x)
        return float(p * np.exp(log_bets(np.array(p), np.array(1 - p))[bet]))

    def near_one(x: float) -> float:
        q = np.exp(x)
        return float(q * np.exp(log_bets(np.array(1 - q), np.array(q))[bet]))

    edges = [i / 8 for i in range(1, 8)]
    total = quad(value, 0.0625, 0.9375, points=edges, limit=200)[0]
    for side in (near_zero, near_one):
        total += sum(quad(side, *ends)[0] for ends in ((-300, -100), (-100, -20), (-20, -2.772589)))
    assert total == pytest.approx(1, abs=1e-5)


def test_bets_by_hand() -> None:
    bets = np.exp(log_bets(np.array([0.01, 0.3, 1.0]), np.array([0.99, 0.7, 1e-9])))
    higher, lower = DIRECTIONS.index("higher"), DIRECTIONS.index("lower")
    assert bets[0, higher] == pytest.approx(0.5 * 0.01**-0.5)
    assert bets[1, lower] == pytest.approx(0.5 * 0.7**-0.5)
    assert bets[0, higher + 4] == pytest.approx(0.99 + 0.01 * 0.1 * 0.01**-0.9)
    quarters = bets[:, DIRECTIONS.index("shape") :][:, :4]
    assert quarters[0] == pytest.approx([1.3, 0.9, 0.9, 0.9])
    assert quarters[1] == pytest.approx([0.9, 1.3, 0.9, 0.9])
    assert quarters[2] == pytest.approx([0.9, 0.9, 0.9, 1.3])
    assert bets[:, -1] == pytest.approx([0.8, 1.2, 0.8])  # on the middle half
    assert bet_weights().sum() == pytest.approx(1)


def test_no_bet_loses_more_than_half() -> None:
    p = np.linspace(1e-12, 1 - 1e-12, 10_001)
    assert np.exp(log_bets(p, 1 - p)).min() >= 0.5  # what keeps the blocks of StartMixture small


# -- start weights ---------------------------------------------------------------------------


def test_all_that_is_staked_and_kept_is_one() -> None:
    staked, kept = start_weights("once", 1, 50_000)
    total = first_stake("once") + np.cumsum(np.exp(staked)) + np.exp(kept)
    assert np.abs(total - 1).max() < 1e-12
    assert np.exp(kept[0]) == 0.5
    assert np.exp(kept[20_000]) == pytest.approx(0.25)  # 0.5 / log2(2 + 2)


def test_start_weights_can_be_had_from_anywhere() -> None:
    whole = start_weights("once", 1, 1000)
    part = start_weights("once", 501, 500)
    assert (part.staked == whole.staked[500:]).all()
    assert (part.kept == whole.kept[500:]).all()


def test_a_start_after_a_million_images_has_a_weight_that_evidence_can_overcome() -> None:
    late, early = (start_weights("once", n, 1).staked[0] for n in (1_000_000, 1000))
    assert early - late < 8
    assert late > -18.5


def test_anew_stakes_one_at_every_image_and_keeps_nothing() -> None:
    staked, kept = start_weights("restart", 1, 3)
    assert first_stake("restart") == 1
    assert np.exp(staked).tolist() == [0, 1, 1]
    assert np.exp(kept).tolist() == [0, 0, 0]


# -- the mixture -----------------------------------------------------------------------------


def slowly(bets: Floats, starts: Starts) -> Floats:
    """The recursion as it is written, one image after the other, not in log space."""
    stakes = np.exp(start_weights(starts, 1, len(bets)).staked)
    stakes[0] = first_stake(starts)
    kept = np.exp(start_weights(starts, 1, len(bets)).kept)
    capital, logs = np.zeros(bets.shape[1:]), []
    for n, bet in enumerate(np.exp(bets)):
        capital = bet * (capital + bet_weights() * stakes[n])
        logs.append(np.log(capital.sum(axis=1) + kept[n]))
    return np.array(logs)


@pytest.mark.parametrize("starts", ["once", "restart"])
def test_the_mixture_matches_a_loop(starts: Starts) -> None:
    p = np.stack([changed(1000), 1 - changed(1000, 1), uniform(1000)], axis=1)
    bets = log_bets(p, 1 - p)
    path = StartMixture(3, starts).advance(bets)
    np.testing.assert_allclose(path.log_capital, slowly(bets, starts), atol=1e-11)


def test_the_estimated_start_is_where_the_best_bet_has_gained_most() -> None:
    p = np.stack([changed(600), uniform(600)], axis=1)
    bets = log_bets(p, 1 - p)
    path = StartMixture(2, "once").advance(bets)
    gains = np.concatenate([np.zeros((1, 2, NUM_BETS)), np.cumsum(bets, axis=0)])
    for n in (1, 2, 255, 256, 257, 512, 600):
        gained = gains[n] - gains[:n]  # by start
        for stream in range(2):
            start, bet = np.unravel_index(gained[:, stream].argmax(), gained[:, stream].shape)
            assert (path.since[n - 1, stream], path.bet[n - 1, stream]) == (start + 1, bet)
    assert abs(path.since[-1, 0] - 301) < 60
    assert DIRECTIONS[path.bet[-1, 0]] == "higher"


@given(st.lists(st.integers(0, 300), max_size=8))
def test_the_result_is_the_same_bits_however_the_stream_is_divided(sizes: list[int]) -> None:
    p = np.stack([changed(700), 1 - changed(700)], axis=1)
    bets = log_bets(p, 1 - p)
    whole, parted = StartMixture(2, "once"), StartMixture(2, "once")
    expected = whole.advance(bets)
    ends = [0, *np.minimum(np.cumsum(sizes, dtype=int), 700), 700]
    parts = [parted.advance(bets[a:b]) for a, b in pairwise(ends)]
    for name in ("log_capital", "since", "bet"):
        found = np.concatenate([getattr(part, name) for part in parts])
        assert (found == getattr(expected, name)).all()
    for name in ("capital", "joined", "gains", "lowest", "since"):
        assert (getattr(parted, name) == getattr(whole, name)).all()


def test_capital_beyond_the_largest_number_is_kept_in_log_space() -> None:
    p = np.full((3000, 1), 1e-9)
    path = StartMixture(1, "once").advance(log_bets(p, 1 - p))
    assert np.isfinite(path.log_capital).all()
    assert path.log_capital[-1] > 20_000


# -- the guarantee -----------------------------------------------------------------------------


def test_the_mean_of_the_martingale_is_one() -> None:
    """After one image, over the distribution of p; every step has the same form."""
    q = (np.arange(20_000) + 0.5) / 20_000
    tail, density = q**4 / 2, 2 * q**3  # more points near 0 and 1, where the bets are large
    p, complement = np.concatenate([[tail, 1 - tail], [1 - tail, tail]], axis=1)
    capital = StartMixture(40_000, "once").advance(log_bets(p, complement)[None]).log_capital[0]
    mean = np.exp(capital) @ np.concatenate([density, density]) / 20_000
    assert mean == pytest.approx(1, abs=2e-3)


def test_false_alarms_are_as_rare_as_promised() -> None:
    p = uniform(300, 2000)
    capital = StartMixture(2000, "once").advance(log_bets(p, 1 - p)).log_capital
    for alpha in (0.05, 0.2):
        alarms = (capital.max(axis=0) >= -np.log(alpha)).mean()
        assert alarms <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 2000)
    assert (capital.max(axis=0) >= -np.log(0.2)).any()


def test_the_mean_time_to_a_false_alarm_is_as_long_as_promised() -> None:
    p = uniform(800, 1000, seed=3)
    capital = StartMixture(1000, "restart").advance(log_bets(p, 1 - p)).log_capital
    for level in (50, 200):
        reached = capital >= np.log(level)
        time = np.where(reached.any(axis=0), reached.argmax(axis=0) + 1, 800)
        assert time.mean() + 3 * time.std() / np.sqrt(1000) >= level
        assert (time <= 20).mean() <= 20 / level + 3 * np.sqrt(0.25 / 1000)


# -- crepes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("slopes", [(-1.0, 0.0, 1.0), (-1.0, -0.5, 0.0, 0.5, 1.0)])
def test_the_simple_jumper_agrees_with_crepes(slopes: tuple[float, ...]) -> None:
    p = changed(2000)
    theirs = SimpleJumper(J=0.01, bf=EpsilonBettingFunction(E=list(slopes))).apply(p)
    ours = np.exp(simple_jumper(p, slopes=slopes))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert theirs.max() > 100


class OurBets:
    """goen's bets in the form of crepes."""

    def apply(self, p_values: Floats) -> Floats:
        return np.exp(log_bets(p_values, 1 - p_values))


def test_the_mixture_agrees_with_the_sleepers_of_crepes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their start times are geometric and their bets are weighted equally; ours made so."""
    rate = 0.001

    def geometric(starts: Starts, first: int, count: int) -> StartWeights:
        n = np.arange(first, first + count)
        staked = np.where(n > 1, np.log(rate) + (n - 1) * np.log1p(-rate), -np.inf)
        return StartWeights(staked, n * np.log1p(-rate))

    monkeypatch.setattr(martingales, "start_weights", geometric)
    monkeypatch.setattr(martingales, "first_stake", lambda starts: rate)
    monkeypatch.setattr(martingales, "bet_weights", lambda: np.full(NUM_BETS, 1 / NUM_BETS))
    p = changed(2000)
    theirs = SleeperStayer(R=rate, bf=OurBets()).apply(p)
    ours = StartMixture(1, "once").advance(log_bets(p, 1 - p)[:, None])
    np.testing.assert_allclose(np.exp(ours.log_capital[:, 0]), theirs, rtol=1e-9)
    assert theirs.max() > 1e6


def test_the_jumper_by_hand() -> None:
    # 1/3 each of 1.4, 1 and 0.6: 1; then a hundredth is spread evenly, and 1.4, 1, 0.6 again.
    after = 0.99 * np.array([1.4, 1.0, 0.6]) / 3 + 0.01 / 3
    second = (after * [1.4, 1.0, 0.6]).sum()
    assert np.exp(simple_jumper(np.array([0.1, 0.1]))) == pytest.approx([1, second])
