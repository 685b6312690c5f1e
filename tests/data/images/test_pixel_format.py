import numpy as np
import pytest

from goen.data.images.pixel_format import (
    COLOUR,
    GREY,
    PixelFormat,
    for_people,
    scaled,
    to_depth,
)
from goen.errors import UsageError

RNG = np.random.default_rng(0)


def test_names_for_people_and_for_manifests() -> None:
    assert COLOUR.decoding == "rgb-8-bit"  # as saved gates say it
    assert PixelFormat(13, 16).decoding == "13-channels-16-bit"
    assert [str(form) for form in (COLOUR, GREY, PixelFormat(1, 16), PixelFormat(4))] == [
        "colour", "grey", "grey of 16 bits", "4 channels",
    ]  # fmt: skip
    for channels, bits in ((0, 8), (3, 12)):
        with pytest.raises(UsageError, match=f"got {channels} of {bits}"):
            PixelFormat(channels, bits)  # type: ignore[arg-type]


def test_depths_keep_black_and_white_and_are_the_same_share_of_it() -> None:
    eight = np.arange(256, dtype=np.uint8).reshape(1, 1, 256)
    sixteen = to_depth(eight, 16)
    assert sixteen.dtype == np.uint16
    assert np.array_equal(sixteen, eight.astype(int) * 257)
    # The model sees values / white in float32: equal to the last bit.
    assert np.array_equal(eight / np.float32(255), sixteen / np.float32(65535))
    assert np.array_equal(to_depth(sixteen, 8), eight)
    assert to_depth(eight, 8) is eight
    deep = np.array([[[0, 128, 129, 65406, 65407]]], np.uint16)  # 128 / 257 < 0.5 < 129 / 257
    assert to_depth(deep, 8).tolist() == [[[0, 0, 1, 254, 255]]]
    assert to_depth(np.array([[[0.0, 0.5, 1.0]]]), 16).tolist() == [[[0, 32768, 65535]]]


def test_a_range_is_stretched_between_black_and_white() -> None:
    values = np.array([[-2.0, 0.0, 2.0], [2.0, 1.0, -1.0]])
    assert scaled(values, 2.0, GREY, -2.0).tolist() == [[0, 128, 255], [255, 191, 64]]
    assert scaled(np.full((1, 2), 3.0), 3.0, GREY, 3.0).tolist() == [[0, 0]]  # no range at all


def test_people_see_grey_and_colour_as_they_are_and_the_mean_of_the_rest() -> None:
    colour = RNG.integers(0, 256, (3, 2, 2), dtype=np.uint8)
    assert np.array_equal(for_people(colour), colour)
    assert np.array_equal(for_people(np.concatenate([colour, colour[:1]])), colour)
    assert np.array_equal(for_people(colour[:1]), np.repeat(colour[:1], 3, axis=0))
    # By hand: means 150, 250, 350 of which the lowest is black.
    deep = np.array([[[100, 200, 300]], [[200, 300, 400]]], np.uint16)
    assert for_people(deep).tolist() == [[[0, 128, 255]]] * 3
    assert for_people(np.full((5, 1, 1), 9, np.uint8)).tolist() == [[[0]]] * 3
