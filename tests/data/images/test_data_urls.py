import base64
import io

import numpy as np
import pytest
from PIL import Image

from goen.data.images.data_urls import data_url, image_url

RNG = np.random.default_rng(0)


def opened(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


@pytest.mark.parametrize("size", [(1, 1), (32, 32), (64, 20)])
def test_small_images_come_back_exactly(size: tuple[int, int]) -> None:
    pixels = RNG.integers(0, 256, (3, *size), dtype=np.uint8)
    url = image_url(pixels)
    assert url.startswith("data:image/png;base64,")
    assert (np.asarray(opened(url)).transpose(2, 0, 1) == pixels).all()


def test_large_images_are_compressed() -> None:
    smooth = Image.fromarray(RNG.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((224, 100))
    pixels = np.asarray(smooth).transpose(2, 0, 1)
    url = image_url(pixels)
    assert url.startswith("data:image/jpeg;base64,")
    found = np.asarray(opened(url)).transpose(2, 0, 1)
    assert np.abs(found.astype(int) - pixels).mean() < 3
    assert len(url) < pixels.size / 10
    assert not opened(url).getexif()


def test_no_side_is_longer_than_asked() -> None:
    pixels = np.zeros((3, 100, 300), np.uint8)
    assert opened(image_url(pixels, 60)).size == (60, 20)
    assert opened(image_url(pixels, 500)).size == (300, 100)


def test_a_data_url_holds_the_bytes() -> None:
    assert data_url(b"<svg/>", "svg+xml") == "data:image/svg+xml;base64,PHN2Zy8+"
