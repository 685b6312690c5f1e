"""Near-copies among rows: what is found, and how often separate rows are taken for copies."""

import numpy as np
import pytest
import torch
from scipy.stats import nhypergeom
from torch import Tensor
from torch.nn.functional import normalize

from goen.functional import near_copies
from goen.functional.near_copies import NearCopies, Sketches, find_near_copies

WIDTH = 12


def drawn(count: int, seed: int, classes: int = 5) -> tuple[Tensor, np.ndarray]:
    """Unit vectors around a mean for each class, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    means = 3 * torch.randn(classes, WIDTH, generator=torch.Generator().manual_seed(99))
    rows = means[labels] + torch.randn(count, WIDTH, generator=generator)
    return normalize(rows, dim=1), labels.numpy()


def moved(rows: Tensor, by: float, seed: int = 5) -> Tensor:
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed))
    return normalize(rows + by * noise, dim=1)


def is_silent(found: NearCopies) -> bool:
    return found.of_training.is_chance and found.of_each_other.is_chance


def test_copies_of_training_rows_are_found_and_named() -> None:
    train, labels = drawn(2000, 0)
    held_out, known = drawn(200, 1)
    copied = torch.arange(50, 90)
    held_out[copied], known[50:90] = moved(train[100:140], 1e-3), labels[100:140]
    found = find_near_copies(train, labels, held_out, known)
    assert found.compared == 200
    assert not found.of_training.is_chance
    assert {*copied.tolist()} <= {*found.of_training.rows.tolist()}
    near = dict(
        zip(found.of_training.rows.tolist(), found.of_training.nearest.tolist(), strict=True)
    )
    assert [near[row] for row in copied.tolist()] == [*range(100, 140)]
    assert len(near) < 50
    assert found.of_each_other.is_chance


def test_frames_of_a_few_scenes_are_near_each_other() -> None:
    train, labels = drawn(2000, 0)
    scenes, of_scene = drawn(4, 1)
    held_out, known = moved(scenes.repeat_interleave(25, 0), 1e-2), of_scene.repeat(25)
    found = find_near_copies(train, labels, held_out, known)
    assert found.of_training.is_chance
    assert len(found.of_each_other.rows) == 100
    assert not found.of_each_other.is_chance
    assert (found.of_each_other.nearest // 25 == found.of_each_other.rows // 25).all()


def test_frames_that_lie_near_one_training_row_are_one_chance() -> None:
    train, labels = drawn(2000, 0)
    frames, known = moved(train[:1].repeat(40, 1), 1e-3), labels[:1].repeat(40)
    found = find_near_copies(train, labels, frames, known)
    assert len(found.of_training.rows) == 40
    assert found.of_training.is_chance
    assert not found.of_each_other.is_chance


@pytest.mark.parametrize("count", [2, 30, 300, 1500])
@pytest.mark.parametrize("training", [40, 400, 3000])
def test_separate_rows_are_silent(count: int, training: int) -> None:
    for seed in range(5):
        train, held_out = drawn(training, seed), drawn(count, seed + 100)
        assert is_silent(find_near_copies(*train, *held_out))


def test_the_level_holds_for_each_set_of_separate_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_copies, "_LEVEL", 0.05)
    alarms = np.zeros(2)
    for seed in range(200):
        found = find_near_copies(*drawn(400, seed), *drawn(150, seed + 1000))
        alarms += [not found.of_training.is_chance, not found.of_each_other.is_chance]
    assert (alarms / 200 < 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5).all()
    assert alarms.sum() > 0  # the test is not silent always


def test_other_shares_of_the_classes_are_no_copies() -> None:
    # Nearly all held-out rows are of one class, and that one is ten times as narrow as the others.
    train, labels = drawn(3000, 0, classes=3)
    held_out, known = drawn(3000, 1, classes=3)
    narrow = moved(normalize(torch.ones(1, WIDTH), dim=1).repeat(3000, 1), 0.03, 6)
    train[labels == 0] = narrow[: int((labels == 0).sum())]
    held_out[known == 0] = narrow[-int((known == 0).sum()) :]
    chosen = np.concatenate([np.flatnonzero(known == 0)[:500], np.flatnonzero(known != 0)[:20]])
    assert is_silent(find_near_copies(train, labels, held_out[chosen], known[chosen]))


def test_a_class_without_training_rows_and_one_held_out_row_are_left_out() -> None:
    train, labels = drawn(100, 0)
    held_out, known = drawn(50, 1)
    assert find_near_copies(train, labels, held_out, known + 5).compared == 0
    assert find_near_copies(train, labels, held_out[:1], known[:1]).compared == 0
    assert is_silent(find_near_copies(train, labels, held_out, known + 5))
    few = find_near_copies(train[:20], labels[:20], held_out, known)
    assert 0 < few.compared <= 20


def test_one_training_row_of_each_class_is_no_copy_of_its_images() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(200, WIDTH, generator=generator)
    held_out = means + 0.3 * torch.randn(200, WIDTH, generator=generator)
    rows = normalize(means, dim=1), np.arange(200), normalize(held_out, dim=1), np.arange(200)
    assert is_silent(find_near_copies(*rows))


def test_at_most_a_thousand_candidates_are_compared() -> None:
    train, held_out = drawn(3000, 0), drawn(1500, 1)
    assert find_near_copies(*train, *held_out).compared == 1000
    found = find_near_copies(
        *train, moved(train[0][:1500], 1e-4), train[1][:1500], np.arange(7, 40)
    )
    assert found.of_training.rows.tolist() == [*range(7, 40)]


@pytest.mark.parametrize(("n", "m"), [(100, 2000), (30, 50), (1000, 2000)])
def test_the_probability_is_negative_hypergeometric(n: int, m: int) -> None:
    reference, rank, numbers = np.arange(m, dtype=float), max(m // 100, 1), np.arange(n)
    expected = [bool(nhypergeom(n + m, n, rank).sf(near - 1) >= 1e-4) for near in range(30)]
    assert {*expected} == {True, False}
    for near in range(30):
        distances = np.where(numbers < near, rank - 1.5, m)
        found = near_copies._near(distances, numbers, numbers, reference)
        assert found.rows.tolist() == [*range(near)]
        assert found.is_chance == expected[near]
        pairs = near_copies._near(distances, numbers, numbers[::-1], reference, in_pairs=True)
        halves = nhypergeom((n + m) // 2, n // 2, max(rank // 2, 1)).sf(near // 2 - 1)
        assert pairs.is_chance == (halves >= 1e-4)


def test_features_that_do_not_vary_are_no_copies() -> None:
    same, labels = normalize(torch.ones(500, 4), dim=1), np.zeros(500, int)
    found = find_near_copies(same, labels, same[:100], labels[:100])
    assert len(found.of_training.rows) == len(found.of_each_other.rows) == 0
    assert is_silent(found)


def test_sketches_keep_distances_and_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(100, 40, generator=torch.Generator().manual_seed(0))
    whole = Sketches(40)
    for part in rows.split(30):
        whole.add(part)
    assert torch.allclose(whole.unit_rows(), whole.unit_rows_of(rows))
    own = torch.cdist(normalize(rows, dim=1), normalize(rows, dim=1))
    assert torch.allclose(torch.cdist(whole.unit_rows(), whole.unit_rows()), own, atol=2e-3)
    monkeypatch.setattr(near_copies, "_NUMBERS", 1000)
    small = Sketches(40)
    for part in rows.split(30):
        small.add(part)
    assert small.unit_rows().shape == (100, 10)
    assert torch.allclose(small.unit_rows(), small.unit_rows_of(rows))
    assert not small.is_full
    small.add(rows)
    assert small.is_full
