import numpy as np
import pytest
from PIL import Image

from goen.data.images.pixel_format import (
    COLOUR,
    GREY,
    PixelFormat,
    for_people,
    resize_bands,
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


@pytest.mark.parametrize("size", [(5, 7), (40, 30), (11, 3), (1, 1)])
def test_bands_of_8_bits_are_resized_as_colour_is(size: tuple[int, int]) -> None:
    image = RNG.integers(0, 256, (3, 11, 20), dtype=np.uint8)
    whole = Image.fromarray(image.transpose(1, 2, 0))
    for step in ((size[1], 11), (size[1], size[0])):
        whole = whole.resize(step, Image.Resampling.BILINEAR)
    assert np.array_equal(resize_bands(image, size), np.asarray(whole).transpose(2, 0, 1))


def triangle(values: np.ndarray, target: int) -> np.ndarray:
    """The last axis resized by a triangle filter, in float64, value by value."""
    count = values.shape[-1]
    scale = count / target
    reach = max(1.0, scale)
    columns = []
    for place in range(target):
        centre = (place + 0.5) * scale
        weights = np.array([max(0.0, 1 - abs(i + 0.5 - centre) / reach) for i in range(count)])
        columns.append(values @ (weights / weights.sum()))
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("size", [(5, 7), (40, 30), (11, 3)])
def test_16_bits_are_resized_without_loss_of_depth(size: tuple[int, int]) -> None:
    image = RNG.integers(0, 65536, (2, 11, 20), dtype=np.uint16)
    wide = triangle(image.astype(np.float64), size[1])
    expected = triangle(wide.swapaxes(1, 2), size[0]).swapaxes(1, 2)
    found = resize_bands(image, size)
    assert found.dtype == np.uint16
    assert np.abs(found - expected).max() <= 0.51  # rounded once
    assert resize_bands(image, (11, 20)) is image


def test_people_see_grey_and_colour_as_they_are_and_the_mean_of_the_rest() -> None:
    colour = RNG.integers(0, 256, (3, 2, 2), dtype=np.uint8)
    assert np.array_equal(for_people(colour), colour)
    assert np.array_equal(for_people(np.concatenate([colour, colour[:1]])), colour)
    assert np.array_equal(for_people(colour[:1]), np.repeat(colour[:1], 3, axis=0))
    # By hand: means 150, 250, 350 of which the lowest is black.
    deep = np.array([[[100, 200, 300]], [[200, 300, 400]]], np.uint16)
    assert for_people(deep).tolist() == [[[0, 128, 255]]] * 3
    assert for_people(np.full((5, 1, 1), 9, np.uint8)).tolist() == [[[0]]] * 3
