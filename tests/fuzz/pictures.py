"""Damaged pictures of every format: pixels, or a DataCorrupt with a sentence."""

import io
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from PIL import Image

from goen.data.images.decoding import read_image
from goen.data.images.pixel_format import COLOUR, PixelFormat
from goen.errors import DataCorrupt
from tests.fuzz.case import Broken, Fuzzer

_SIZE = (24, 20)
_FORMS = (
    COLOUR,
    COLOUR,
    PixelFormat(1, 16),
    PixelFormat(4),
    PixelFormat(5, 16),
    PixelFormat(5, 16),
)


def _samples() -> dict[str, bytes]:
    """A small picture in every format, mode and compression that goen reads."""
    draw = np.random.default_rng(0)
    colour = Image.fromarray(draw.integers(0, 256, (*_SIZE, 3), dtype=np.uint8))
    deep = Image.fromarray(draw.integers(0, 65536, _SIZE, dtype=np.uint16))
    real = Image.fromarray(draw.random(_SIZE).astype(np.float32))
    whole = Image.fromarray(draw.integers(-(2**31), 2**31, _SIZE, dtype=np.int64).astype(np.int32))
    exif = Image.Exif()
    exif[0x0112] = 6
    see_through = colour.convert("RGBA")
    see_through.putalpha(Image.fromarray(draw.integers(0, 256, _SIZE, dtype=np.uint8)))
    found: dict[str, bytes] = {}

    def add(form: str, picture: Image.Image, **options: object) -> None:
        buffer = io.BytesIO()
        picture.save(buffer, form, **options)
        found[f"{form} {picture.mode} {' '.join(options)}"] = buffer.getvalue()

    for mode in ("1", "L", "LA", "P", "RGB"):
        add("PNG", colour.convert(mode))
    add("PNG", see_through)
    add("PNG", deep)
    add("PNG", colour.convert("P"), transparency=3)
    add("PNG", colour, exif=exif, icc_profile=b"not a profile", dpi=(72, 72))
    for mode in ("L", "RGB", "CMYK"):
        add("JPEG", colour.convert(mode))
    add("JPEG", colour, progressive=True, exif=exif, quality=30)
    add("GIF", colour.convert("P"))
    add("GIF", colour.convert("P"), save_all=True, append_images=[colour.convert("L")] * 3)
    for mode in ("1", "L", "P", "RGB"):
        add("BMP", colour.convert(mode))
    for mode in ("1", "L", "RGB"):
        add("PPM", colour.convert(mode))
    add("PPM", deep.convert("I"))
    for picture in (colour, see_through, deep, real, whole, colour.convert("1")):
        add("TIFF", picture)
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        add("TIFF", colour, compression=compression)
    add("TIFF", colour.convert("1"), compression="group4")
    add("TIFF", colour, save_all=True, append_images=[colour] * 2)
    add("WEBP", colour)
    add("WEBP", see_through, lossless=True)
    add("WEBP", colour, save_all=True, append_images=[colour] * 2, exif=exif)
    return found


_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 20_000, 0x7FFFFFFF, 0xFFFFFFFF)
Change = Callable[[random.Random, bytearray], str]


def _flip(draw: random.Random, data: bytearray) -> str:
    last = draw.choice((16, 64, len(data)))
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        data[draw.randrange(min(last, len(data)))] = draw.randrange(256)
    return f"bytes changed among the first {last}"


def _number(draw: random.Random, data: bytearray) -> str:
    """A number of two or four bytes somewhere, most often near the start, becomes extreme."""
    value, form = draw.choice(_EXTREMES), draw.choice(("<H", ">H", "<I", ">I"))
    packed = struct.pack(form, value & (0xFFFF if form.endswith("H") else 0xFFFFFFFF))
    place = draw.randrange(min(draw.choice((32, 128, len(data))), max(len(data) - 4, 1)))
    data[place : place + len(packed)] = packed
    return f"{value} at {place}"


def _cut(draw: random.Random, data: bytearray) -> str:
    end = draw.randrange(len(data))
    del data[end:]
    return f"cut after {end} bytes"


def _repeat(draw: random.Random, data: bytearray) -> str:
    start = draw.randrange(len(data))
    part = data[start : start + draw.randrange(1, 200)]
    data[start:start] = part * draw.choice((1, 2, 1000))
    return f"{len(part)} bytes repeated at {start}"


def _remove(draw: random.Random, data: bytearray) -> str:
    start = draw.randrange(len(data))
    del data[start : start + draw.randrange(1, 50)]
    return f"bytes removed at {start}"


def _append(draw: random.Random, data: bytearray) -> str:
    data += draw.choice((b"\0" * 1000, b"\xff" * 1000, bytes(data), b"<script>", b"PK\x03\x04"))
    return "bytes appended"


_CHANGES: tuple[Change, ...] = (_flip, _flip, _number, _number, _cut, _repeat, _remove, _append)


def _png_with_other_content(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    """A chunk of a PNG changed and its checksum made right again, so that its content is read."""
    chunks, place = [], 8
    while place + 12 <= len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        chunks.append([data[place + 4 : place + 8], data[place + 8 : place + 8 + length]])
        place += 12 + length
    chosen = draw.choice(chunks)
    content = bytearray(chosen[1] or b"\0")
    if chosen[0] == b"IDAT" and draw.random() < 0.5:
        content = bytearray(zlib.compress(bytes(draw.choice((0, 10, 10_000_000)))))
    else:
        draw.choice((_flip, _number))(draw, content)
    chosen[1] = bytes(content)
    if draw.random() < 0.2:
        chunks.insert(
            1, [draw.choice((b"tRNS", b"PLTE", b"iCCP", b"eXIf", b"acTL", b"zTXt")), b"x"]
        )
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    ]
    return data[:8] + b"".join(parts), f"{chosen[0]!r} changed, checksum right"


def _bands() -> dict[str, bytes]:
    """Multi-band TIFF files, and arrays of images."""
    draw = np.random.default_rng(0)
    deep = draw.integers(0, 65536, (5, *_SIZE), dtype=np.uint16)
    last = deep.transpose(1, 2, 0)
    ways: dict[str, dict[str, Any]] = {
        "TIFF strips": {"rowsperstrip": 7},
        "TIFF deflate": {"compression": "zlib", "predictor": True},
        "TIFF tiles": {"tile": (16, 16), "compression": "zlib"},
        "TIFF big": {"bigtiff": True, "byteorder": ">"},
    }
    found: dict[str, bytes] = {}
    for name, way in ways.items():
        buffer = io.BytesIO()
        tifffile.imwrite(buffer, last, photometric="minisblack", planarconfig="contig", **way)
        found[name] = buffer.getvalue()
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, deep, photometric="minisblack", planarconfig="separate")
    found["TIFF separate"] = buffer.getvalue()
    for name, values in (("first", deep), ("last", last / 65535), ("grey", deep[0] >> 8)):
        buffer = io.BytesIO()
        np.save(buffer, values)
        found[f"NPY {name}"] = buffer.getvalue()
        buffer = io.BytesIO()
        np.savez_compressed(buffer, images=values)
        found[f"NPZ {name}"] = buffer.getvalue()
    return found


class PictureFuzzer(Fuzzer):
    """Damages small pictures; some are read from a file, some from memory."""

    name = "pictures"
    # goen.data.images.limits: MAX_PIXELS of up to 12 bytes each.
    seconds = 30.0
    megabytes = 2500.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._samples = {**_samples(), **_bands()}

    def run(self, draw: random.Random) -> str:
        name = draw.choice(sorted(self._samples))
        data = self._samples[name]
        said = [name]
        if name.startswith("PNG") and draw.random() < 0.5:
            data, how = _png_with_other_content(draw, data)
            said.append(how)
        else:
            changed = bytearray(data)
            for _ in range(draw.choice((1, 1, 2, 4))):
                said.append(draw.choice(_CHANGES)(draw, changed) if changed else "nothing left")
            data = bytes(changed)
        self.what = "; ".join(said)
        source: Path | bytes = data
        if name.startswith("NP") or draw.random() < 0.3:
            source = self.folder / f"case.{name[:3].lower()}"
            source.write_bytes(data)
        size = draw.choice((None, (8, 8), (32, 20)))
        form = draw.choice(_FORMS)
        try:
            pixels = read_image(source, size, pixel_format=form)
        except DataCorrupt as error:
            if not 10 < len(str(error)) < 1000:
                raise Broken(f"a message of {len(str(error))} characters") from error
            return "refused"
        if pixels.dtype != form.dtype or pixels.ndim != 3 or len(pixels) != form.channels:
            raise Broken(f"pixels are {pixels.dtype} {pixels.shape}")
        if size is not None and pixels.shape[1:] != size:
            raise Broken(f"pixels have shape {pixels.shape}, {size} was asked for")
        return "read"
