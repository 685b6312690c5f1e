import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from goen.functional.grouping import NONE, group_rows, representatives, unit_rows

DIMENSIONS = 12


def clouds(sizes: list[int], spread: float = 0.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows around unit vectors, one for each size, and which one each row is around."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    return np.eye(DIMENSIONS)[truth] + spread * rng.normal(size=(len(truth), DIMENSIONS)), truth


@pytest.mark.parametrize("sizes", [[60, 40], [80, 50, 30], [40, 40, 40, 40, 30]])
def test_clouds_that_are_apart_are_found_with_their_number(sizes: list[int]) -> None:
    rows, truth = clouds(sizes)
    found = group_rows(rows)
    grouped = found != NONE
    assert found.max() + 1 == len(sizes)
    assert grouped.mean() > 0.9
    assert adjusted_rand_score(truth[grouped], found[grouped]) > 0.95
    counts = np.bincount(found[grouped])
    assert (np.diff(counts) <= 0).all()  # the largest first


def test_one_cloud_is_hardly_ever_split() -> None:
    """At most one time in twenty; of 15, four or more have a probability below 1 %."""
    split = 0
    for seed in range(15):
        rows = np.random.default_rng(seed).normal(size=(60, 6))
        split += bool((group_rows(rows, seed) != NONE).any())
    assert split < 4


def test_few_or_equal_rows_have_no_groups() -> None:
    rows, _ = clouds([10, 9])
    assert (group_rows(rows) == NONE).all()
    assert (group_rows(np.ones((50, 3))) == NONE).all()
    assert len(group_rows(np.zeros((0, 3)))) == 0


def test_lengths_do_not_count_and_the_same_seed_gives_the_same_groups() -> None:
    rows, _ = clouds([60, 40])
    longer = rows * np.random.default_rng(1).uniform(1, 9, (len(rows), 1))
    assert (group_rows(rows, 3) == group_rows(longer, 3)).all()


def test_unit_rows_keep_zeros() -> None:
    assert unit_rows(np.array([[3.0, 4], [0, 0]])).tolist() == [[0.6, 0.8], [0, 0]]


def slow_representatives(features: np.ndarray, count: int) -> list[int]:
    """Every row is tried in every step."""
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    chosen: list[int] = []
    for _ in range(count):
        totals = {}
        for candidate in set(range(len(rows))) - {*chosen}:
            medoids = rows[[*chosen, candidate]]
            each = ((rows[:, None] - medoids[None]) ** 2).sum(axis=2).min(axis=1)
            totals[candidate] = each.sum()
        chosen.append(min(totals, key=lambda row: totals[row]))
    return chosen


def test_representatives_match_a_search_over_all_rows() -> None:
    rows, truth = clouds([25, 12, 5])
    found = representatives(rows, 6)
    assert found == slow_representatives(rows, 6)
    assert truth[found[:3]].tolist() == [0, 1, 2]  # one of each, the largest first


def test_the_memory_does_not_grow_with_the_square_of_the_rows() -> None:
    rows, truth = clouds([5000, 2500, 1500])
    tracemalloc.start()
    found = group_rows(rows)
    chosen = representatives(rows, 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250e6  # all distances take 650 MB
    assert len({*chosen}) == 20
    assert truth[chosen[:3]].tolist() == [0, 1, 2]
    assert max(chosen) > 2000
    assert adjusted_rand_score(truth, found) > 0.95


def test_there_are_no_more_representatives_than_rows() -> None:
    rows, _ = clouds([3])
    assert sorted(representatives(rows, 20)) == [0, 1, 2]
    assert representatives(rows[:0], 20) == []
    assert len({*representatives(np.ones((5, 2)), 5)}) == 5
