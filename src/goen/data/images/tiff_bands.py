"""Pixels of TIFF files that Pillow does not open: more than colour has, or several of 16 bits.

Pillow decodes grey TIFF files in every compression and depth that is needed here. A row of W pixels
of C values is a row of W·C grey values, and bands that are stored one after the other are C grey
images. So a directory that says so is written behind the content of the file, and Pillow decodes
that, with its own limits.
"""

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from goen.data.images.formats import open_image
from goen.data.images.pixel_format import PixelFormat

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIPS, _ORIENTATION, _SAMPLES, _ROWS_PER_STRIP, _STRIP_BYTES = 273, 274, 277, 278, 279
_PLANAR, _PREDICTOR, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_BYTES = 284, 317, 322, 323, 324, 325
_FORMAT = 339
_UNSIGNED, _FLOAT = 1, 3
_LONG = 4

_MAGIC = {b"II*\0": 8, b"MM\0*": 8, b"II+\0": 16, b"MM\0+": 16}
# Of a file, which is held in memory. An image of MAX_PIXELS values needs less, uncompressed.
_MOST_BYTES = 1 << 30
# More than an image of MAX_PIXELS in strips of the usual 8 kB.
_MOST_PARTS = 1 << 17


@dataclass(frozen=True)
class TiffBands:
    """The first image of a TIFF file, before it is decoded.

    Attributes:
        channels: of each pixel.
        bits: of each value: 8 or 16, or 32 for floats.
        height: in pixels.
        width: in pixels.
        tags: of its directory, numbers or tuples of them by number.
    """

    channels: int
    bits: int
    height: int
    width: int
    tags: dict[int, Any]

    @property
    def values_at_once(self) -> int:
        """The values of its pixels, with those that fill up its tiles."""
        across, whole = _widths(self)
        down = int(self.tags[_TILE_HEIGHT]) if _TILES in self.tags else self.height
        return self.channels * max(whole * self.height, across * down)

    @property
    def pixel_format(self) -> PixelFormat:
        """Channels and bits as it is read: floats as 16 bits."""
        return PixelFormat(self.channels, 8 if self.bits == 8 else 16)

    def numbers(self, tag: int) -> tuple[int, ...]:
        """All values of a tag."""
        value = self.tags[tag]
        return tuple(map(int, value)) if isinstance(value, tuple) else (int(value),)


def check_parts(source: Path | bytes) -> None:
    """Raise a ValueError if the first image of a TIFF file has too many strips or tiles.

    For each Pillow makes some objects when it opens the file, 300 bytes of memory for 4 bytes of
    the file, and decodes them one by one.
    """
    with _opened(source) as file:
        try:
            parts = [n for tag, n in _entries(file) if tag in (_STRIPS, _TILES)]
        except (struct.error, OverflowError):
            return  # whoever opens it gets the reason
    if any(n > _MOST_PARTS for n in parts):
        raise ValueError(f"it has {max(parts):,} strips or tiles, more than {_MOST_PARTS:,}")


def _entries(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """The tags of the first directory, and how many values each has, as Pillow reads them."""
    header = file.read(16)
    if header[:2] not in (b"II", b"MM"):
        return
    order, is_big = "<" if header[:1] == b"I" else ">", header[2:3] == b"+"
    at, number, entry = ("8xQ", "Q", "HHQ8x") if is_big else ("4xL", "H", "HHL4x")
    file.seek(*struct.unpack_from(order + at, header))
    (count,) = struct.unpack(order + number, file.read(struct.calcsize(order + number)))
    size = struct.calcsize(order + entry)
    found = file.read(min(count * size, _MOST_BYTES))
    for tag, _, values in struct.iter_unpack(order + entry, found[: len(found) // size * size]):
        yield tag, values


def _opened(source: Path | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def several_bands(source: Path | bytes) -> TiffBands | None:
    """What a TIFF file of more than one band says of its first image; ``None`` of other files.

    Raises:
        Exception: of many kinds, of a file that is broken.
        ValueError: values that are neither 8 nor 16 bits nor floats, or bands of several kinds.
    """
    with _opened(source) as file:
        header = file.read(16)
        length = _MAGIC.get(header[:4])
        if length is None:
            return None
        directory = ImageFileDirectory_v2(header[:length])
        file.seek(directory.next)
        directory.load(file)
    tags = {int(tag): directory[tag] for tag in directory}
    bits = {*map(int, np.atleast_1d(tags.get(_BITS, 1)))}
    kinds = {*map(int, np.atleast_1d(tags.get(_FORMAT, _UNSIGNED)))}
    if len(bits) != 1 or len(kinds) != 1:
        raise ValueError("its channels have different depths")
    found = TiffBands(
        int(tags.get(_SAMPLES, 1)), bits.pop(), int(tags[_HEIGHT]), int(tags[_WIDTH]), tags
    )
    sides = (_TILE_WIDTH, _TILE_HEIGHT) if _TILES in tags else ()
    if min(found.channels, found.height, found.width, *(int(tags[side]) for side in sides)) < 1:
        raise ValueError("it has no pixels, or tiles without any")
    if found.channels == 1:
        return None
    if (found.bits, *kinds) not in ((8, _UNSIGNED), (16, _UNSIGNED), (32, _FLOAT)):
        raise ValueError(
            f"its values have {found.bits} bits of SampleFormat {kinds.pop()}; expected unsigned 8 "
            "or 16 bits, or floats of 32 bits in [0, 1]"
        )
    return found


def decode_bands(source: Path | bytes, tiff: TiffBands) -> NDArray[Any]:
    """The bands ``(C, H, W)``: uint8, uint16 or float32.

    The caller has checked that there are not too many values.

    Args:
        source: a file, or the content of one.
        tiff: what it says of itself.

    Raises:
        Exception: of many kinds, of a file that is broken.
    """
    if tiff.tags.get(_ORIENTATION, 1) != 1:
        raise ValueError("it is stored turned or mirrored; store it upright")
    predictor = tiff.tags.get(_PREDICTOR, 1)
    if predictor not in (1, 2) or (predictor == 2 and tiff.bits == 32):
        raise ValueError(f"its predictor {predictor} is not known here")
    content = _content(source)
    if tiff.bits == 32 and content[:1] == b"M" and tiff.tags.get(_COMPRESSION, 1) != 1:
        # Pillow 13 does not exchange their bytes.
        raise ValueError("its floats are compressed and big-endian; store them little-endian")
    separate = tiff.tags.get(_PLANAR, 1) == 2
    together, images = (1, tiff.channels) if separate else (tiff.channels, 1)
    tiled = _TILES in tiff.tags
    places, lengths = (_TILES, _TILE_BYTES) if tiled else (_STRIPS, _STRIP_BYTES)
    offsets, counts = tiff.numbers(places), tiff.numbers(lengths)
    if len(offsets) != len(counts) or len(offsets) % images or not offsets:
        raise ValueError("the places of its bands are incomplete")
    # Behind the content there will be a directory, which is no part of the image.
    whole = tiff.channels * tiff.height * tiff.width * tiff.bits // 8
    short = tiff.tags.get(_COMPRESSION, 1) == 1 and sum(counts) < whole
    if short or any(o + n > len(content) for o, n in zip(offsets, counts, strict=True)):
        raise ValueError("it ends early")
    share = len(offsets) // images
    decoded = []
    for start in range(0, len(offsets), share):
        part = slice(start, start + share)
        grey = _as_grey(content, tiff, together, offsets[part], counts[part])
        with open_image(io.BytesIO(grey)) as image:
            decoded.append(_pixels(np.asarray(image), tiff, together))
    return np.concatenate(decoded)


def _content(source: Path | bytes) -> bytes:
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if size > _MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes; at most {_MOST_BYTES:,} are read")
    return source if isinstance(source, bytes) else source.read_bytes()


def _as_grey(
    content: bytes, tiff: TiffBands, together: int, offsets: Sequence[int], counts: Sequence[int]
) -> bytes:
    """The content of a grey file of strips or tiles whose pixels have so many values."""
    tiled = _TILES in tiff.tags
    across, whole = _widths(tiff)
    kind = _FLOAT if tiff.bits == 32 else _UNSIGNED
    tags: dict[int, Sequence[int]] = {
        _WIDTH: [whole * together],
        _HEIGHT: [tiff.height],
        _BITS: [tiff.bits],
        _COMPRESSION: tiff.numbers(_COMPRESSION),
        _PHOTOMETRIC: [1],
        _SAMPLES: [1],
        _FORMAT: [kind],
    }
    if tiled:
        tags |= {_TILE_WIDTH: [across * together], _TILE_HEIGHT: tiff.numbers(_TILE_HEIGHT)}
        tags |= {_TILES: offsets, _TILE_BYTES: counts}
    else:
        rows = tiff.tags.get(_ROWS_PER_STRIP, tiff.height)
        tags |= {_ROWS_PER_STRIP: [int(rows)], _STRIPS: offsets, _STRIP_BYTES: counts}
    return _with_directory(content, tags)


def _widths(tiff: TiffBands) -> tuple[int, int]:
    """Of a tile or strip, and of all of them beside each other."""
    across = int(tiff.tags[_TILE_WIDTH]) if _TILES in tiff.tags else tiff.width
    return across, -(-tiff.width // across) * across


def _pixels(values: NDArray[Any], tiff: TiffBands, together: int) -> NDArray[Any]:
    """Grey values as ``(together, H, W)``, without the padding of tiles."""
    dtype = {8: np.uint8, 16: np.uint16, 32: np.float32}[tiff.bits]
    across, whole = _widths(tiff)
    pixels = values.astype(dtype, copy=False).reshape(tiff.height, -1, across, together)
    if tiff.tags.get(_PREDICTOR, 1) == 2:  # each value is the difference to its left neighbour
        pixels = np.cumsum(pixels, axis=2, dtype=dtype)
    inside = pixels.reshape(tiff.height, whole, together)[:, : tiff.width]
    return np.ascontiguousarray(inside.transpose(2, 0, 1))


def _with_directory(content: bytes, tags: dict[int, Sequence[int]]) -> bytes:
    """The content with a directory of these tags behind it, in place of its own."""
    order = "<" if content[:2] == b"II" else ">"
    start = len(content) + len(content) % 2
    behind = start + 2 + 12 * len(tags) + 4
    entries, values = b"", b""
    for tag, numbers in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(numbers)}L", *numbers)
        if len(numbers) > 1:
            place = struct.pack(f"{order}L", behind + len(values))
            values += packed
        else:
            place = packed
        entries += struct.pack(f"{order}HHL", tag, _LONG, len(numbers)) + place
    header = content[:2] + struct.pack(f"{order}HL", 42, start)
    directory = struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + values
    return b"".join([header, content[8:], bytes(len(content) % 2), directory])
