import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.data.images.decoding import read_image
from goen.data.images.headers import pixel_formats
from goen.data.images.pixel_format import GREY, PixelFormat
from goen.errors import DataCorrupt
from tests.data.encoded import COLOUR, encoded

DEEP = PixelFormat(1, 16)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16", "YCbCr", "F"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.fromarray(COLOUR).convert("L" if mode in ("1", "I", "I;16", "F") else "RGB")
    form = "PNG" if mode in ("1", "L", "LA", "P", "RGBA", "I;16") else "TIFF"
    pixels = read_image(encoded(image.convert(mode), form), (8, 10))
    assert pixels.shape == (3, 8, 10)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 0


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    values = np.array([[0, 257], [32896, 65535]], dtype=np.uint16)
    pixels = read_image(encoded(Image.fromarray(values)), None)
    assert pixels[0].tolist() == [[0, 1], [128, 255]]


def test_transparency_is_over_black() -> None:
    rgba = np.zeros((1, 2, 4), np.uint8)
    rgba[0, 0] = (200, 100, 50, 0)
    rgba[0, 1] = (200, 100, 50, 255)
    pixels = read_image(encoded(Image.fromarray(rgba)), None)
    assert pixels[:, 0, 0].tolist() == [0, 0, 0]
    assert pixels[:, 0, 1].tolist() == [200, 100, 50]


@pytest.mark.parametrize("white", [1, 255, 65535])
def test_floats_are_the_same_image_as_their_8_bits(white: int) -> None:
    for grey in (COLOUR[..., 0], COLOUR[..., 0] // 2):  # the brightest pixel is white, or is not
        values = (grey / 255 * white).astype(np.float32)
        pixels = read_image(encoded(Image.fromarray(values), "TIFF"))
        assert (pixels == grey).all()


def test_grey_of_32_bits_is_taken_by_its_values() -> None:
    def read(values: list[list[int]]) -> list[int]:
        image = Image.fromarray(np.array(values, np.int32))
        return read_image(encoded(image, "TIFF"))[0].ravel().tolist()

    assert read([[0, 100, 255]]) == [0, 100, 255]
    assert read([[0, 257, 65535]]) == [0, 1, 255]
    assert read([[-100, 0, 100]]) == [0, 128, 255]


def test_deep_grey_takes_little_more_memory_than_its_pixels() -> None:
    deep = encoded(Image.fromarray(np.full((3000, 3000), 40_000, np.uint16)))
    tracemalloc.start()
    assert (read_image(deep, (4, 4)) == round(40_000 / 257)).all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 3000 * 3000  # 2 bytes twice as they come, 1 as they go, and some rows


def test_nan_in_an_image_is_said() -> None:
    values = np.ones((4, 4), np.float32)
    values[1, 1] = np.nan
    with pytest.raises(DataCorrupt, match="NaN"):
        read_image(encoded(Image.fromarray(values), "TIFF"), None)


def test_a_transparent_colour_of_an_rgb_image_is_over_black(tmp_path: Path) -> None:
    image = Image.new("RGB", (2, 1), (9, 200, 9))
    image.putpixel((1, 0), (50, 60, 70))
    image.save(tmp_path / "t.png", transparency=(9, 200, 9))
    pixels = read_image(tmp_path / "t.png", None)
    assert pixels[:, 0].T.tolist() == [[0, 0, 0], [50, 60, 70]]


def test_grey_of_16_bits_stays_so_in_png_and_tiff(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (9, 7), dtype=np.uint16)
    for name in ("a.png", "a.tif"):
        Image.fromarray(values).save(tmp_path / name)
        assert np.array_equal(read_image(tmp_path / name, pixel_format=DEEP), values[None])
        assert pixel_formats(tmp_path / name) == [PixelFormat(), DEEP]
        eight = read_image(tmp_path / name, pixel_format=GREY)
        assert np.array_equal(eight[0], np.round(values / 257))
        # As colour it is what it was before: three equal channels of 8 bits.
        assert np.array_equal(read_image(tmp_path / name), np.repeat(eight, 3, axis=0))


def test_grey_of_8_bits_is_one_channel(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (9, 7), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    for size in (None, (4, 5), (20, 11)):
        found = read_image(tmp_path / "a.png", size, pixel_format=GREY)
        assert np.array_equal(found, read_image(tmp_path / "a.png", size)[:1])
    assert np.array_equal(
        read_image(tmp_path / "a.png", pixel_format=DEEP)[0], values.astype(int) * 257
    )
    assert pixel_formats(tmp_path / "a.png") == [PixelFormat(), GREY]


def test_a_grey_gate_reads_colour_as_its_luma() -> None:
    # By hand: 0.299 · 200 + 0.587 · 100 + 0.114 · 50 = 124.2
    assert (read_image(Image.new("RGB", (2, 2), (200, 100, 50)), pixel_format=GREY) == 124).all()
    assert (read_image(Image.new("RGB", (2, 2), (77, 77, 77)), pixel_format=GREY) == 77).all()
    half = Image.new("RGBA", (2, 2), (200, 200, 200, 128))  # over black
    assert (read_image(half, pixel_format=GREY) == 100).all()
    assert (read_image(Image.new("P", (2, 2), 0), pixel_format=GREY).shape) == (1, 2, 2)


def test_transparency_is_a_channel_where_four_are_needed(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 6, 4), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", pixel_format=PixelFormat(4))
    assert np.array_equal(found, values.transpose(2, 0, 1))
    assert pixel_formats(tmp_path / "a.png") == [PixelFormat(), PixelFormat(4), GREY]
    Image.fromarray(values[..., :3]).save(tmp_path / "rgb.png")
    assert pixel_formats(tmp_path / "rgb.png") == [PixelFormat(), GREY]
    with pytest.raises(DataCorrupt, match=r"rgb.png has 3 channels; 4 are needed \(4 channels\)"):
        read_image(tmp_path / "rgb.png", pixel_format=PixelFormat(4))
    deep = read_image(tmp_path / "rgb.png", pixel_format=PixelFormat(3, 16))
    assert np.array_equal(deep, values[..., :3].transpose(2, 0, 1).astype(int) * 257)
