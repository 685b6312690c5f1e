import hashlib

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from goen.data import ImageSet, require_disjoint
from goen.errors import LeakError, UsageError


def test_a_split_is_disjoint_complete_and_fixed_by_the_seed(small_set: ImageSet) -> None:
    parts = small_set.split({"x": 7, "y": 5}, seed=42)
    again = small_set.split({"x": 7, "y": 5}, seed=42)
    assert parts["x"].overlap(parts["y"]) == 0
    assert sorted([*parts["x"].rows, *parts["y"].rows]) == list(range(12))
    assert parts["x"].fingerprint == again["x"].fingerprint
    assert parts["x"].fingerprint != small_set.split({"x": 7}, seed=43)["x"].fingerprint
    assert parts["x"].name == "small[x]"


def test_the_permutation_is_the_frozen_one(small_set: ImageSet) -> None:
    # np.random.RandomState(42).permutation(12), which NumPy promises never to change.
    expected = [10, 9, 0, 8, 5, 2, 1, 11, 4, 7, 3, 6]
    assert small_set.split({"all": 12}, seed=42)["all"].rows.tolist() == expected


def test_a_split_shares_the_pixels(small_set: ImageSet) -> None:
    part = small_set.split({"x": 5}, seed=0)["x"]
    assert part.pixels is small_set.pixels


def test_reading_a_split_of_a_split_gives_the_right_images(small_set: ImageSet) -> None:
    nested = small_set.take([9, 3, 6, 1]).take([2, 0])
    assert (nested.read() == small_set.pixels[[6, 9]]).all()
    assert (nested.read(slice(1, 2)) == small_set.pixels[[9]]).all()
    assert (nested.read([1, 1]) == small_set.pixels[[9, 9]]).all()
    assert nested.labels.tolist() == [0, 0]


@pytest.mark.parametrize("rows", [[True, False], np.array([True]), torch.tensor([True])])
def test_a_mask_is_not_taken_for_numbers(small_set: ImageSet, rows: ArrayLike) -> None:
    for given in (small_set.take, small_set.read):
        with pytest.raises(UsageError, match=r"got a boolean mask: use numpy\.flatnonzero\(mask\)"):
            given(rows)
    with pytest.raises(UsageError, match="Rows are image indices, integers; got float64"):
        small_set.take([0.5])
    assert len(small_set.take([])) == 0
    assert len(small_set.read([])) == 0


def test_batches_cover_the_set_in_order(small_set: ImageSet) -> None:
    part = small_set.take([4, 2, 8, 0, 1])
    assert (np.concatenate(list(part.batches(2))) == part.read()).all()


def test_what_is_read_may_be_changed_without_harm(small_set: ImageSet) -> None:
    before = small_set.fingerprint
    small_set.read()[:] = 0
    assert (
        ImageSet("x", small_set.pixels, small_set.labels, small_set.classes).fingerprint == before
    )


def test_classes_are_renumbered_in_the_order_given(small_set: ImageSet) -> None:
    chosen = small_set.of_classes(("c", "a"), "chosen")
    assert chosen.classes == ("c", "a")
    assert chosen.labels.tolist() == [1, 0] * 4
    assert (chosen.read() == small_set.pixels[[0, 2, 3, 5, 6, 8, 9, 11]]).all()
    assert chosen.counts() == {"c": 4, "a": 4}


def test_the_digest_is_blake2b_of_the_pixels(small_set: ImageSet) -> None:
    image = small_set.pixels[5].tobytes()
    expected = hashlib.blake2b(image, digest_size=16, person=b"(3, 8, 8)").digest()
    assert small_set.digests[5:6].tobytes() == expected
    assert small_set.take([5]).digests.tobytes() == expected


def test_a_digest_that_ends_in_zero_bytes_survives() -> None:
    # NumPy strips trailing zeros from byte strings it hands out one by one; the arrays keep them.
    digests = np.frombuffer(b"x" * 15 + b"\0" + b"y" * 16, "S16")
    pixels = np.zeros((2, 3, 8, 8), np.uint8)
    s = ImageSet("s", pixels, np.zeros(2, int), ("a",), known_digests=digests)
    assert s.take([0]).overlap(s) == 1
    assert s.digests.tobytes() == b"x" * 15 + b"\0" + b"y" * 16


@pytest.mark.parametrize("change", ["pixel", "label", "class", "order"])
def test_the_fingerprint_sees_every_change_of_content(small_set: ImageSet, change: str) -> None:
    pixels, labels, classes = small_set.read(), small_set.labels.copy(), small_set.classes
    if change == "pixel":
        pixels[3, 1, 2, 2] ^= 1
    elif change == "label":
        labels[0] = 1
    elif change == "class":
        classes = ("a", "b", "d")
    else:
        pixels, labels = pixels[::-1].copy(), labels[::-1].copy()
    assert ImageSet("small", pixels, labels, classes).fingerprint != small_set.fingerprint


def test_the_fingerprint_ignores_the_name_and_the_way_there(small_set: ImageSet) -> None:
    part = small_set.take([1, 2, 3])
    copy = ImageSet("other", part.read(), part.labels, part.classes)
    assert copy.fingerprint == part.fingerprint


def test_without_leaves_what_the_others_have(small_set: ImageSet) -> None:
    first, third = small_set.take([0, 1]), small_set.take([3])
    left = small_set.without(first, third)
    assert left.digests.tolist() == np.delete(small_set.digests, [0, 1, 3]).tolist()
    assert small_set.without() is small_set
    assert len(small_set.without(small_set)) == 0


def test_a_leak_is_refused_even_through_a_copy(small_set: ImageSet) -> None:
    used = small_set.take([0, 1, 2])
    copy = ImageSet("copy", small_set.read([2, 3]), small_set.labels[[2, 3]], small_set.classes)
    with pytest.raises(LeakError, match="copy shares 1 of its 2 images with small"):
        require_disjoint(copy, used)
    require_disjoint(small_set.take([3, 4]), used)


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (np.zeros((2, 3, 8, 8), np.float32), [0, 0], "must be uint8"),
        (np.zeros((2, 8, 8, 3), np.uint8), [0, 0], r"\(N, C, H, W\)"),
        (np.zeros((2, 5, 8, 4), np.uint8), [0, 0], r"\(N, C, H, W\)"),
        (np.zeros((2, 0, 8, 8), np.uint8), [0, 0], r"\(N, C, H, W\)"),
        (np.zeros((2, 8, 8), np.uint8), [0, 0], r"\(N, C, H, W\)"),
        (np.zeros((2, 1, 3, 8, 8), np.uint8), [0, 0], r"\(N, C, H, W\)"),
        (np.zeros((2, 3, 8, 8), np.uint8), [0], "need 2 labels"),
        (np.zeros((2, 3, 8, 8), np.uint8), [0, 1], r"labels must lie in 0\.\.0"),
    ],
)
def test_what_cannot_be_a_set_is_said(pixels: np.ndarray, labels: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ImageSet("bad", pixels, np.array(labels), ("only",))


@pytest.mark.parametrize("shape", [(2, 4, 8, 4), (2, 4, 8, 1), (2, 5, 8, 5), (2, 13, 8, 8)])
def test_images_may_be_narrow_or_have_many_channels(shape: tuple[int, ...]) -> None:
    images = ImageSet("good", np.zeros(shape, np.uint8), np.zeros(2), ("only",))
    assert images.image_shape == shape[1:]


def test_a_split_larger_than_the_set_is_refused(small_set: ImageSet) -> None:
    with pytest.raises(UsageError, match="12 images"):
        small_set.split({"x": 13}, seed=0)


def test_sets_of_16_bits_that_differ_in_the_last_bit_are_different_sets() -> None:
    pixels = np.full((2, 1, 4, 4), 1000, np.uint16)
    one, other = (ImageSet("a", p, np.zeros(2, int), ("a",)) for p in (pixels, pixels + 1))
    assert one.fingerprint != other.fingerprint
    assert one.overlap(other) == 0
    short = np.full((2, 1, 4, 4), 3, np.uint8)
    same = (ImageSet("a", p, np.zeros(2, int), ("a",)) for p in (short, short.astype("u2") * 257))
    assert len({each.fingerprint for each in same}) == 1
