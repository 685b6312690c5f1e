"""What decoding may cost: the largest images, and the memory that all threads share."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from PIL import Image

from goen.data.images.formats import count_scans, has_run_lengths, pixels_at_once
from goen.errors import DataCorrupt

# An image of more pixels than this is a bomb or a mistake; Pillow refuses still larger ones. The
# 108-megapixel photographs of phones are below it.
MAX_PIXELS = 178_956_970
# A JPEG has ten scans or so, each of which passes over all of its pixels.
MAX_SCANS = 200
# Of run-length encoded BMP files, which Pillow decodes in Python: a second for four million
# pixels, whatever the size of the file.
MAX_RUN_LENGTH_PIXELS = 10_000_000
# What all threads together may hold in memory while they decode. A larger image is decoded alone.
DECODING_BYTES = 1 << 29


class ByteBudget:
    """A number of bytes that threads share: each holds what it needs, or waits.

    A thread that needs more than there is waits until it is alone.

    Example:
        >>> budget = ByteBudget(10)
        >>> with budget.hold(8):
        ...     budget.used
        8
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._changed = Condition()

    @contextmanager
    def hold(self, needed: int) -> Iterator[None]:
        """Hold so many bytes within this block."""
        with self._changed:
            self._changed.wait_for(lambda: not self.used or self.used + needed <= self.limit)
            self.used += needed
        try:
            yield
        finally:
            with self._changed:
                self.used -= needed
                self._changed.notify_all()


memory = ByteBudget(DECODING_BYTES)
"""Of the images that are being decoded."""


def checked_pixels(image: Image.Image, name: str) -> int:
    """How many are decoded at once.

    Raises:
        DataCorrupt: too many pixels, or a file that takes as long to decode as too many.
    """
    pixels = pixels_at_once(image)
    if pixels > MAX_PIXELS:
        tiled = pixels > image.width * image.height
        raise DataCorrupt(
            f"{name} has {image.width}×{image.height} pixels"
            f"{f' in tiles of {pixels:,}' * tiled}; at most {MAX_PIXELS:,} are read. Shrink it "
            "first if it is genuine."
        )
    if pixels > MAX_RUN_LENGTH_PIXELS and has_run_lengths(image):
        raise DataCorrupt(
            f"{name} is a run-length encoded BMP of {pixels:,} pixels; at most "
            f"{MAX_RUN_LENGTH_PIXELS:,} are read. Convert it to PNG."
        )
    scans = count_scans(image)
    if scans > MAX_SCANS:
        raise DataCorrupt(
            f"{name} is a JPEG of {scans:,} scans; at most {MAX_SCANS} are read. Save it again if "
            "it is genuine."
        )
    return pixels


def check_resized(height: int, width: int, size: tuple[int, int], name: str) -> None:
    """Raise a ``DataCorrupt`` if the image is too large once its width is resized."""
    if size[1] * height > MAX_PIXELS:
        raise DataCorrupt(
            f"{name} has {width}×{height} pixels: too narrow for its height to "
            f"be resized to a width of {size[1]}. Crop it first if it is genuine."
        )
