import numpy as np
import pytest
from PIL import Image

from goen.data.images.resizing import resize_bands

RNG = np.random.default_rng(0)


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
