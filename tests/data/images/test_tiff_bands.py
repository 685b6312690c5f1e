"""Multi-band TIFF files, written by tifffile, as ``read_image`` reads them."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from goen.data.images import decoding
from goen.data.images.decoding import read_image
from goen.data.images.limits import MAX_PIXELS
from goen.data.images.pixel_format import PixelFormat
from goen.data.images.tiff_bands import several_bands
from goen.errors import DataCorrupt

RNG = np.random.default_rng(0)

WAYS: dict[str, dict[str, Any]] = {
    "one strip": {},
    "strips": {"rowsperstrip": 7},
    "tiles": {"tile": (16, 32)},
    "deflate": {"compression": "zlib", "rowsperstrip": 9},
    "deflate with differences": {"compression": "zlib", "predictor": True},
    "tiles with differences": {"tile": (16, 32), "compression": "zlib", "predictor": True},
    "separate": {"planarconfig": "separate", "rowsperstrip": 7},
    "separate tiles": {"planarconfig": "separate", "tile": (16, 32), "compression": "zlib"},
    "big-endian": {"byteorder": ">"},
    "big-endian deflate": {"byteorder": ">", "compression": "zlib", "predictor": True},
    "BigTIFF": {"bigtiff": True},
}


def content(image: np.ndarray, **way: Any) -> bytes:
    """An image ``(C, H, W)`` as a TIFF file."""
    file = io.BytesIO()
    way = {"photometric": "minisblack", "planarconfig": "contig", **way}
    data = image if way["planarconfig"] == "separate" else image.transpose(1, 2, 0)
    tifffile.imwrite(file, data, **way)
    return file.getvalue()


def of_strips(magic: bytes, count: int) -> bytes:
    """A grey TIFF file of 6 × ``count`` pixels, each row a strip, all of them in one place."""
    order, is_big = "<" if magic[:1] == b"I" else ">", magic[2:3] == b"+"
    number, entry = ("Q", "HHQQ") if is_big else ("H", "HHLL")
    tags = {256: 6, 257: count, 258: 8, 259: 1, 262: 1, 277: 1, 278: 1}
    start = 16 + struct.calcsize(order + number) + 8 * struct.calcsize(order + entry) + 8
    entries = {tag: (4, 1, value) for tag, value in tags.items()} | {273: (4, count, start)}
    first = struct.pack(f"{order}HHQ", 8, 0, 16) if is_big else struct.pack(f"{order}L", 16)
    packed = b"".join(struct.pack(order + entry, tag, *entries[tag]) for tag in sorted(entries))
    directory = struct.pack(order + number, len(entries)) + packed + bytes(8)
    return (magic + first).ljust(16, b"\0") + directory + struct.pack(order + "L", 0) * count


@pytest.mark.parametrize("magic", [b"II*\0", b"MM\0*", b"II\0*", b"MM*\0", b"II+\0"])
def test_too_many_strips_are_refused_before_pillow_makes_objects_of_them(
    magic: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.data.images.tiff_bands._MOST_PARTS", 1000)
    assert read_image(of_strips(magic, 1000)).shape == (3, 1000, 6)
    for form in (PixelFormat(3), PixelFormat(5)):
        with pytest.raises(DataCorrupt, match="it has 1,001 strips or tiles, more than 1,000"):
            read_image(of_strips(magic, 1001), pixel_format=form)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("channels", "dtype"), [(13, np.uint16), (5, np.uint8), (2, np.uint16)])
def test_every_layout_gives_the_pixels(channels: int, dtype: type, way: str) -> None:
    image = RNG.integers(0, np.iinfo(dtype).max + 1, (channels, 40, 50), dtype=dtype)
    form = PixelFormat(channels, 8 if dtype is np.uint8 else 16)
    found = read_image(content(image, **WAYS[way]), pixel_format=form)
    assert found.dtype == dtype
    assert np.array_equal(found, image)


def test_floats_are_shares_of_white() -> None:
    image = RNG.random((4, 6, 5)).astype(np.float32)
    found = read_image(content(image), pixel_format=PixelFormat(4, 16))
    assert np.array_equal(found, np.round(image.astype(np.float64) * 65535))
    for wrong in (image * 300, image - 0.5, np.where(image > 0.5, np.nan, image)):
        with pytest.raises(DataCorrupt, match=r"its floats should lie in \[0, 1\]"):
            read_image(content(wrong.astype(np.float32)), pixel_format=PixelFormat(4, 16))
    with pytest.raises(DataCorrupt, match="compressed and big-endian"):
        big = content(image, byteorder=">", compression="zlib")
        read_image(big, pixel_format=PixelFormat(4, 16))


def test_bands_are_resized_and_change_their_depth() -> None:
    image = np.full((13, 8, 9), 514, np.uint16)
    assert (read_image(content(image), (3, 4), pixel_format=PixelFormat(13, 16)) == 514).all()
    assert (read_image(content(image), (3, 4), pixel_format=PixelFormat(13, 8)) == 2).all()
    eight = read_image(content(np.full((5, 8, 9), 3, np.uint8)), pixel_format=PixelFormat(5, 16))
    assert eight.dtype == np.uint16
    assert (eight == 3 * 257).all()


def test_colour_of_16_bits_keeps_them_if_the_form_has_so_many(tmp_path: Path) -> None:
    image = RNG.integers(0, 65536, (3, 6, 5), dtype=np.uint16)
    (tmp_path / "rgb.tif").write_bytes(content(image, photometric="rgb"))
    assert np.array_equal(read_image(tmp_path / "rgb.tif", pixel_format=PixelFormat(3, 16)), image)
    # As RGB of 8 bits it is what Pillow makes of it, as it always was.
    with Image.open(tmp_path / "rgb.tif") as opened:
        expected = np.asarray(opened.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(read_image(tmp_path / "rgb.tif"), expected)
    # Three bands that do not say they are colour: Pillow does not open them.
    assert np.array_equal(read_image(content(image >> 8 << 8)), np.round((image >> 8 << 8) / 257))


def test_another_number_of_bands_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "tile.tif"
    file.write_bytes(content(np.zeros((13, 4, 4), np.uint16)))
    for form, wanted in ((PixelFormat(), "3 are needed"), (PixelFormat(1, 16), "1 are needed")):
        with pytest.raises(DataCorrupt, match=f"tile.tif has 13 channels; {wanted}"):
            read_image(file, pixel_format=form)
    with pytest.raises(DataCorrupt, match="has 13 channels; 12 are needed"):
        read_image(file, pixel_format=PixelFormat(12, 16))


def test_other_values_and_layouts_are_refused() -> None:
    with pytest.raises(DataCorrupt, match="16 bits of SampleFormat 2; expected unsigned"):
        read_image(content(np.zeros((5, 4, 4), np.int16)), pixel_format=PixelFormat(5, 16))
    turned = bytearray(content(np.zeros((5, 4, 4), np.uint8), extratags=[(274, 3, 1, 6, True)]))
    with pytest.raises(DataCorrupt, match="stored turned or mirrored"):
        read_image(bytes(turned), pixel_format=PixelFormat(5))
    assert several_bands(b"\x89PNG and more") is None


def test_as_many_values_as_may_be_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = content(np.zeros((5, 4, 3), np.uint8))
    monkeypatch.setattr(decoding, "MAX_PIXELS", 60)
    assert read_image(whole, pixel_format=PixelFormat(5)).shape == (5, 4, 3)
    monkeypatch.setattr(decoding, "MAX_PIXELS", 59)
    with pytest.raises(DataCorrupt, match="has 60 values; at most 59 are read"):
        read_image(whole, pixel_format=PixelFormat(5))


def test_too_many_values_are_refused_before_they_are_decoded() -> None:
    whole = bytearray(content(np.zeros((5, 4, 4), np.uint8)))
    # The height, whatever stands there: tag 257, type SHORT or LONG, count 1.
    place = whole.index(struct.pack("<H", 257), 8)
    kind = struct.unpack_from("<H", whole, place + 2)[0]
    struct.pack_into("<HHL" + ("H" if kind == 3 else "L"), whole, place, 257, kind, 1, 60_000)
    width = whole.index(struct.pack("<H", 256), 8)
    struct.pack_into("<HHL" + ("H" if kind == 3 else "L"), whole, width, 256, kind, 1, 60_000)
    with pytest.raises(DataCorrupt, match=f"18,000,000,000 values; at most {MAX_PIXELS:,}"):
        read_image(bytes(whole), pixel_format=PixelFormat(5))


@pytest.mark.parametrize("way", ["strips", "tiles with differences", "separate", "BigTIFF"])
def test_a_damaged_file_is_one_error(way: str) -> None:
    whole = content(RNG.integers(0, 65536, (6, 40, 50), dtype=np.uint16), **WAYS[way])
    for stop in (9, 40, len(whole) // 2, len(whole) - 40):
        with pytest.raises(DataCorrupt):
            read_image(whole[:stop], pixel_format=PixelFormat(6, 16))
    for seed in range(150):
        rng = np.random.default_rng(seed)
        bad = bytearray(whole)
        for place in rng.integers(4, 700, 4):
            bad[place] = rng.integers(0, 256)
        try:
            found = read_image(bytes(bad), pixel_format=PixelFormat(6, 16))
        except DataCorrupt:
            continue
        assert found.shape[0] == 6
