"""Images as the bytes of their files."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

COLOUR = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def tiff_of_one_tile(width: int, height: int, tile: tuple[int, int]) -> bytes:
    """A grey TIFF file of so many pixels, black, stored in one tile (width, height)."""
    content = zlib.compress(bytes(tile[0] * tile[1]))
    content += bytes(len(content) % 2)
    tags = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile[0], 323: tile[1]}
    tags |= {324: 8, 325: len(content)}
    entries = b"".join(struct.pack("<HHLL", tag, 4, 1, value) for tag, value in tags.items())
    header = b"II*\0" + struct.pack("<L", 8 + len(content))
    return header + content + struct.pack("<H", len(tags)) + entries + bytes(4)
