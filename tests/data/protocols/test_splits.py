"""Splits by content: stratified, whole groups of copies, the same under any names and order."""

import numpy as np
import pytest

from goen.data.imageset import DIGEST, Digests
from goen.data.protocols.splits import check_shares, split_by_content, usual_shares
from goen.errors import UsageError

SHARES = {"validation": 0.15, "test": 0.15}


def hashes(count: int, seed: int = 0) -> Digests:
    drawn = np.random.default_rng(seed).integers(1, 256, (count, DIGEST.itemsize), dtype=np.uint8)
    return np.frombuffer(drawn.tobytes(), DIGEST)


def members(
    content: Digests, labels: np.ndarray, shares: dict[str, float]
) -> dict[str, set[bytes]]:
    parts = split_by_content(content, labels, shares)
    return {part: {bytes(content[row]) for row in rows} for part, rows in parts.items()}


def test_each_class_is_split_by_the_shares_rounded_up() -> None:
    labels = np.repeat([0, 1, 2, 3], [100, 12, 3, 2])
    parts = split_by_content(hashes(117), labels, SHARES)
    counts = {part: np.bincount(labels[rows], minlength=4).tolist() for part, rows in parts.items()}
    # By hand: 15 of 100; 1.8 of 12 is 2; 0.45 of 3 is 1; two images are too few for three parts.
    assert counts == {"validation": [15, 2, 1, 0], "test": [15, 2, 1, 0], "train": [70, 8, 1, 2]}
    every = np.concatenate([*parts.values()])
    assert sorted(every.tolist()) == list(range(117))


def test_the_first_hashes_of_a_class_come_first() -> None:
    content = hashes(40)
    parts = members(content, np.zeros(40, np.int64), SHARES)
    order = sorted(bytes(one) for one in content)
    assert parts["validation"] == {*order[:6]}
    assert parts["test"] == {*order[6:12]}


def test_order_and_names_change_nothing() -> None:
    content, labels = hashes(90), np.arange(90) % 3
    order = np.random.default_rng(1).permutation(90)
    assert members(content[order], labels[order], SHARES) == members(content, labels, SHARES)


def test_added_images_move_few_others() -> None:
    content = hashes(1010)
    labels = np.zeros(1010, np.int64)
    before = members(content[:1000], labels[:1000], SHARES)
    after = members(content, labels, SHARES)
    moved = sum(len(before[part] - after[part]) for part in before)
    assert moved <= 10


def test_copies_are_in_one_part() -> None:
    content = hashes(60)
    twice = np.concatenate([content, content[::-1]])
    parts = split_by_content(twice, np.zeros(120, np.int64), SHARES)
    found = [{bytes(twice[row]) for row in rows} for rows in parts.values()]
    assert sum(map(len, found)) == 60
    assert {len(rows) for rows in parts.values()} == {18, 84}


@pytest.mark.parametrize("count", [100, 133, 134, 200, 333, 334, 10_000])
def test_there_are_enough_images_for_a_threshold(count: int) -> None:
    shares = usual_shares(count)
    parts = split_by_content(hashes(count), np.zeros(count, np.int64), shares)
    assert len(parts["validation"]) * 2 // 5 >= 19
    assert len(parts["train"]) >= 0.3 * count


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"validation": 0.0}, "The share of validation images must be a number, above 0"),
        ({"test": 1.0}, "The share of test images"),
        ({"validation": 0.5, "test": 0.5}, "leave no images for training: validation 0.5, test"),
    ],
)
def test_shares_are_checked(shares: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_shares(shares)
