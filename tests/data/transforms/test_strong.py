"""Strong augmentations: what they do to an image, and that they never leave it as it was."""

import numpy as np

from goen.data import ImageSet, load_set
from goen.data.imageset import Pixels
from goen.data.transforms.strong import strongly_augmented


def images_of(pixels: Pixels) -> ImageSet:
    return ImageSet("some", pixels, np.zeros(len(pixels)), ("a",))


def random_images(count: int = 60) -> ImageSet:
    return images_of(np.random.default_rng(0).integers(0, 120, (count, 3, 16, 16)).astype(np.uint8))


def squares(image: Pixels) -> list[bytes]:
    return [
        image[:, row : row + 4, column : column + 4].tobytes()
        for row in range(0, 16, 4)
        for column in range(0, 16, 4)
    ]


def turns(before: Pixels, after: Pixels) -> list[int]:
    """By how many quarters it was turned, if the rest of it is one grey square of half its side."""
    places = np.argwhere((after == 128).all(axis=0))
    (top, left), (bottom, right) = places.min(axis=0), places.max(axis=0)
    if (bottom - top, right - left, len(places)) != (7, 7, 64):
        return []
    hole = np.zeros((16, 16), bool)
    hole[top : bottom + 1, left : right + 1] = True
    return [
        k
        for k in range(4)
        if np.array_equal(np.rot90(before, k, (1, 2))[:, ~hole], after[:, ~hole])
    ]


def test_an_image_is_a_puzzle_or_turned_with_a_hole() -> None:
    before = random_images()
    after = strongly_augmented(before, seed=3)
    assert len(after) == len(before)
    assert after.classes == ("augmented",)
    kinds, quarters, orders = [], set(), set()
    for old, new in zip(before.read(), after.read(), strict=True):
        puzzle = sorted(squares(old)) == sorted(squares(new))
        kinds.append(puzzle)
        if puzzle:
            order = tuple(squares(old).index(square) for square in squares(new))
            assert order != tuple(range(16))
            orders.add(order)
        else:
            (k,) = turns(old, new)
            quarters.add(k)
    assert 15 < sum(kinds) < 45
    assert quarters == {1, 2, 3}
    assert len(orders) == sum(kinds)  # each image has its own


def test_it_depends_on_the_image_and_the_seed_alone() -> None:
    some = random_images()
    backwards = some.take(range(len(some))[::-1])
    changed = strongly_augmented(some, seed=0).read()
    assert (strongly_augmented(backwards, seed=0).read()[::-1] == changed).all()
    assert (strongly_augmented(some.take([7]), seed=0).read()[0] == changed[7]).all()
    different = (strongly_augmented(some, seed=1).read() != changed).any(axis=(1, 2, 3))
    assert different.mean() > 0.9


def test_the_stream_of_random_numbers_is_pinned() -> None:
    image = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(1, 3, 8, 8)
    pinned = [strongly_augmented(images_of(image), seed).read()[0, 0, 0] for seed in range(3)]
    assert [row.tolist() for row in pinned] == [
        [4, 5, 32, 33, 38, 39, 54, 55],
        [2, 3, 36, 37, 16, 17, 48, 49],
        [63, 62, 61, 60, 59, 58, 57, 56],
    ]


def test_an_image_that_stays_as_it_is_is_left_out() -> None:
    grey = np.full((1, 3, 16, 16), 128, np.uint8)
    whole = images_of(np.concatenate([random_images(5).read(), grey]))
    assert strongly_augmented(whole, seed=0).overlap(whole) == 0
    assert len(strongly_augmented(whole, seed=0)) == 5
    assert strongly_augmented(load_set("digits"), seed=0).overlap(load_set("digits")) == 0


def test_images_that_are_not_square_and_of_16_bits_turn_by_half() -> None:
    pixels = np.random.default_rng(0).integers(0, 30_000, (40, 2, 8, 20)).astype(np.uint16)
    after = strongly_augmented(images_of(pixels), seed=0)
    assert after.image_shape == (2, 8, 20)
    lefts = set()
    for old, new in zip(pixels, after.read(), strict=True):
        hole = (new == 128 * 257).all(axis=0)
        if hole.any():
            assert hole.sum() == 16
            assert (np.rot90(old, 2, (1, 2))[:, ~hole] == new[:, ~hole]).all()
            lefts.add(int(np.argwhere(hole)[:, 1].min()))
    assert {0, 16} <= lefts  # from the left rim to the right one
