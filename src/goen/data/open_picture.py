"""Which picture formats goen opens, and Pillow kept to them and quiet."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from PIL import Image

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded, in Pillow's names; a phone's MPO is a JPEG. One format per suffix above."""

_quiet_lock = Lock()
_quiet_users = 0
_quiet = warnings.catch_warnings()


def open_picture(file: Path | BinaryIO) -> Image.Image:
    """The picture, opened but not decoded, if it is of one of ``FORMATS``, whatever its name.

    Pillow by itself tries every decoder it has, and the one for EPS starts Ghostscript.

    Raises:
        UnidentifiedImageError: it is of no such format.
    """
    return Image.open(file, formats=FORMATS)


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
