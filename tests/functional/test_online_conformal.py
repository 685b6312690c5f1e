"""p-values of a stream, against slow loops and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from goen.errors import UsageError
from goen.functional.online_conformal import ScoreCounts, smoothed_p_values, uniforms

FEW = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40)


@given(FEW, FEW, st.integers(1, 7))
def test_ranks_match_a_loop_however_the_stream_is_divided(
    held_out: list[float], scores: list[float], size: int
) -> None:
    seen = ScoreCounts.of(held_out)
    parts = [seen.add(np.array(scores[i : i + size])) for i in range(0, len(scores), size)]
    above, equal, earlier = (np.concatenate(part) for part in zip(*parts, strict=True))
    for n, score in enumerate(scores):
        before = [*held_out, *scores[:n]]
        assert above[n] == sum(other > score for other in before)
        assert equal[n] == sum(other == score for other in before)
        assert earlier[n] == len(before)
    assert len(seen) == len(held_out) + len(scores)
    assert seen.values.tolist() == sorted({*held_out, *scores})


def test_a_call_longer_than_a_block_is_ranked_as_one() -> None:
    scores = np.random.default_rng(0).normal(size=700).round(1)
    whole = ScoreCounts.of([0.0]).add(scores)
    one_by_one = ScoreCounts.of([0.0])
    for n, score in enumerate(scores):
        ranked = one_by_one.add(np.array([score]))
        assert (ranked.above[0], ranked.equal[0]) == (whole.above[n], whole.equal[n])


def test_infinite_scores_are_the_highest_and_tie() -> None:
    ranked = ScoreCounts.of([1.0, np.inf]).add(np.array([np.inf, 5.0, np.inf]))
    assert ranked.above.tolist() == [0, 2, 0]
    assert ranked.equal.tolist() == [1, 0, 2]


def test_nothing_added_changes_nothing() -> None:
    seen = ScoreCounts.of([1.0, 2.0])
    assert [len(part) for part in seen.add(np.zeros(0))] == [0, 0, 0]
    assert len(seen) == 2


def test_p_values_by_hand() -> None:
    # Held out: 1, 2, 2, 5. The score 2 has one above, two equal, four earlier; U = 0.25.
    ranked = ScoreCounts.of([1.0, 2.0, 2.0, 5.0]).add(np.array([2.0, 6.0]))
    p, complement = smoothed_p_values(ranked, np.array([0.25, 0.5]))
    assert p.tolist() == [(1 + 0.25 * 3) / 5, 0.5 / 6]
    assert complement.tolist() == [(1 + 0.75 * 3) / 5, 5.5 / 6]


@pytest.mark.parametrize("digits", [0, 8])
def test_p_values_of_exchangeable_scores_are_uniform_and_independent(digits: int) -> None:
    rng = np.random.default_rng(1)
    rows = []
    for seed in range(400):
        scores = rng.normal(size=28).round(digits)
        ranked = ScoreCounts.of(scores[:8]).add(scores[8:])
        rows.append(smoothed_p_values(ranked, uniforms(seed, 0, 20))[0])
    p = np.array(rows)
    assert kstest(p.ravel(), "uniform").pvalue > 1e-3
    # The sum of the first 10 and of the last 10 of a stream are independent.
    assert abs(np.corrcoef(p[:, :10].sum(1), p[:, 10:].sum(1))[0, 1]) < 4 / np.sqrt(400)


def test_p_values_against_held_out_scores_alone_would_fail_that_test() -> None:
    rng = np.random.default_rng(1)
    held_out, scores = rng.normal(size=(400, 8)), rng.normal(size=(400, 20))
    above = (held_out[:, :, None] > scores[:, None]).sum(1)
    p = (above + rng.random(above.shape)) / 9
    assert np.corrcoef(p[:, :10].sum(1), p[:, 10:].sum(1))[0, 1] > 0.3


def test_uniform_numbers_are_those_of_philox_and_can_be_had_from_anywhere() -> None:
    whole = uniforms(3, 0, 1000)
    expected = np.random.Generator(np.random.Philox(key=3)).random(1000)
    assert np.abs(whole - expected).max() < 2.0**-52
    for start in (1, 2, 3, 4, 5, 997):
        assert (uniforms(3, start, 3) == whole[start : start + 3]).all()
    assert whole.min() > 0
    assert ((1 - whole) + whole == 1).all()
    assert len(uniforms(3, 5, 0)) == 0


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_out_of_range_is_an_error(seed: int) -> None:
    with pytest.raises(UsageError, match="whole number from 0"):
        uniforms(seed, 0, 1)
    assert len(uniforms((1 << 64) - 1, 0, 1)) == 1


@pytest.mark.parametrize(
    ("values", "counts"),
    [([1.0, 1.0], [1, 1]), ([2.0, 1.0], [1, 1]), ([1.0], [0]), ([1.0], [1, 1]), ([np.nan], [1])],
)
def test_counts_that_cannot_be_are_refused(values: list[float], counts: list[int]) -> None:
    with pytest.raises(ValueError, match="value"):
        ScoreCounts(np.array(values), np.array(counts))
