"""Near-copies: a picture saved again is found, other pictures are not."""

import io

import numpy as np
from PIL import Image

from goen.data import ImageSet
from goen.data.imageset import Pixels
from goen.data.protocols.near_copies import Thumbnails


def pictures(count: int, seed: int) -> Pixels:
    """Smooth random images."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 4, 4, 3)).astype(np.uint8)
    large = [Image.fromarray(c).resize((32, 32), Image.Resampling.BICUBIC) for c in coarse]
    return np.stack([np.asarray(image).transpose(2, 0, 1) for image in large])


def set_of(name: str, pixels: Pixels) -> ImageSet:
    return ImageSet(name, pixels, np.zeros(len(pixels)), ("a",))


def saved_again(image: Pixels) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(file, "JPEG", quality=80)
    return np.asarray(Image.open(file)).transpose(2, 0, 1)


def test_a_picture_saved_again_is_found() -> None:
    train, others = pictures(50, 0), pictures(20, 1)
    others[7] = saved_again(train[33])
    assert Thumbnails(set_of("train", train)).near_copies(set_of("test", others)) == [(7, 33)]


def test_pages_of_one_colour_are_not_compared() -> None:
    white = np.full((2, 1, 8, 8), 65_000, np.uint16)
    assert not Thumbnails(set_of("train", white)).near_copies(set_of("test", white + 1))
