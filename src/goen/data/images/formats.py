"""Which image formats goen opens, and Pillow kept to them and quiet."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
from PIL import Image

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded, in Pillow's names; a phone's MPO is a JPEG. One format per suffix above."""

HEAD_BYTES = 16
"""By which Pillow tells formats."""

IMAGE_SIDES = (256, 257)
"""The tags of a TIFF file that give its width and height as they are stored."""

TILE_SIDES = (322, 323)
"""The tags of a TIFF file that give width and height of its tiles."""

# How a scan of a JPEG begins, of one to four components; no other bytes of the pixels are so.
_SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
_SCAN_BYTES = 5
_READ_AT_ONCE = 1 << 20

_quiet_lock = Lock()
_quiet_users = 0
_quiet = warnings.catch_warnings()


def open_image(file: Path | BinaryIO) -> Image.Image:
    """The image, opened but not decoded, if it is of one of ``FORMATS``, whatever its name.

    Pillow by itself tries every decoder it has, and the one for EPS starts Ghostscript.

    Raises:
        UnidentifiedImageError: it is of no such format.
    """
    return Image.open(file, formats=FORMATS)


def begins_like_format(head: bytes) -> bool:
    """Whether the first ``HEAD_BYTES`` of a file are those of one of ``FORMATS``: Pillow's test."""
    Image.init()
    accepts = (Image.OPEN[name][1] for name in FORMATS)
    # A head that is cut short is none; Pillow looks at its second byte, if its first fits.
    return len(head) == HEAD_BYTES and any(bool(accept and accept(head)) for accept in accepts)


def pixels_at_once(image: Image.Image) -> int:
    """The pixels that are decoded at once: of a TIFF file of tiles at least one whole tile.

    The size of the tiles is the file's own choice: those of an image of one pixel may be huge.
    """
    tags = getattr(image, "tag_v2", None)
    width, height = (0, 0) if tags is None else (np.max(tags.get(tag, 0)) for tag in TILE_SIDES)
    return max(image.width * image.height, int(width) * int(height))


def count_scans(image: Image.Image) -> int:
    """The scans of a JPEG that is not decoded yet, those of thumbnails in it included; else 0.

    Each scan passes over all pixels, and twenty bytes make one: a file of a megabyte can take as
    long as 40,000 images.
    """
    file: BinaryIO | None = getattr(image, "fp", None)
    if image.format not in ("JPEG", "MPO") or file is None:
        return 0
    place, count, end = file.tell(), 0, b""
    file.seek(0)
    while part := file.read(_READ_AT_ONCE):
        part = end + part
        count += sum(1 for _ in _SCAN.finditer(part))
        end = part[1 - _SCAN_BYTES :]
    file.seek(place)
    return count


def has_run_lengths(image: Image.Image) -> bool:
    """Whether this is a run-length encoded BMP, not decoded yet: Pillow decodes it in Python."""
    return any(tile[0] == "bmp_rle" for tile in getattr(image, "tile", ()))


@contextmanager
def pillow_is_quiet() -> Iterator[None]:
    """Silence Pillow's warnings, about size and odd metadata; afterwards filters are as before.

    The filters belong to the process, so of several threads the first changes them and the last
    restores them: nested ``catch_warnings`` in threads would leave them changed.
    """
    global _quiet_users, _quiet
    with _quiet_lock:
        if not _quiet_users:
            _quiet = warnings.catch_warnings()
            _quiet.__enter__()
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _quiet_users += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_users -= 1
            if not _quiet_users:
                _quiet.__exit__(None, None, None)
