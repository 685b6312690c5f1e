import numpy as np
import pytest
import torch
from PIL import Image

from goen.data.images.decoding import read_image
from goen.data.imageset import Pixels
from goen.gate.export.traceable_resize import TraceableResize

RNG = np.random.default_rng(0)
SIZES = [(1, 1), (1, 40), (40, 1), (5, 7), (32, 32), (31, 33), (64, 64), (57, 33), (20, 300)]
SIZES += [(300, 20), (333, 500), (601, 87)]


def by_pillow(images: Pixels, size: tuple[int, int]) -> Pixels:
    pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in images]
    return np.stack([read_image(picture, size) for picture in pictures])


@pytest.mark.parametrize("size", [(32, 32), (33, 57), (1, 2), (70, 16)])
def test_the_pixels_are_those_of_read_picture_to_the_last_bit(size: tuple[int, int]) -> None:
    resize = TraceableResize(size)
    others = [tuple(RNG.integers(1, 200, 2).tolist()) for _ in range(25)]
    for height, width in [*SIZES, *others]:
        noise = RNG.integers(0, 256, (2, 3, height, width), dtype=np.uint8)
        coarse = by_pillow(noise[:, :, ::16, ::16], (height, width))  # smooth, as photographs are
        images = np.concatenate([noise, coarse, np.full_like(noise[:1], 255)])
        found = resize(torch.from_numpy(images)).numpy()
        assert found.dtype == np.uint8
        assert np.array_equal(found, by_pillow(images, size)), (height, width)


def test_a_row_worked_by_hand() -> None:
    # Half as wide: the centres are at 1 and 3, the triangle reaches 2 to both sides, and its
    # weights 3/4, 3/4, 1/4 at the pixels' centres 0.5, 1.5, 2.5 are divided by their sum 7/4.
    row = torch.tensor([0, 70, 140, 35], dtype=torch.uint8).view(1, 1, 1, 4)
    left, right = (3 * 0 + 3 * 70 + 140) / 7, (70 + 3 * 140 + 3 * 35) / 7
    assert TraceableResize((1, 2))(row).flatten().tolist() == [left, right] == [50, 85]


def test_the_own_size_changes_nothing_and_no_images_stay_none() -> None:
    images = torch.from_numpy(RNG.integers(0, 256, (3, 3, 24, 40), dtype=np.uint8))
    assert torch.equal(TraceableResize((24, 40))(images), images)
    assert TraceableResize((8, 9))(images[:0]).shape == (0, 3, 8, 9)
