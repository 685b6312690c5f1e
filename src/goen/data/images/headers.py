"""Image files as they describe themselves: opened, not decoded."""

import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from PIL import ExifTags, Image, UnidentifiedImageError

from goen.data.images.array_files import read_array_header
from goen.data.images.formats import FORMATS, IMAGE_SIDES, open_image, pillow_is_quiet
from goen.data.images.limits import MAX_PIXELS
from goen.data.images.pillow_modes import is_deep
from goen.data.images.pixel_format import COLOUR, GREY, PixelFormat
from goen.data.images.tiff_bands import TiffBands, check_parts, several_bands
from goen.errors import DataCorrupt
from goen.io.arrays import is_array_file
from goen.io.storage_errors import read_errors

# EXIF orientations that exchange height and width.
_QUARTER_TURNS = (5, 6, 7, 8)


def pixel_formats(file: Path) -> list[PixelFormat]:
    """How a file may be read, the usual way first: for a model of as many channels.

    An image that Pillow opens is RGB first, then what it is itself, then grey. A TIFF file that
    it does not open is what it is, and so is an array.

    Raises:
        DataCorrupt: the file is no image.
    """
    if is_array_file(file):
        return read_array_header(file, str(file), MAX_PIXELS).pixel_formats()
    own, by_pillow = own_pixel_format(file)
    found = [COLOUR, own, PixelFormat(1, own.bits)] if by_pillow else [own]
    return list(dict.fromkeys(found))


def own_pixel_format(file: Path) -> tuple[PixelFormat, bool]:
    """The channels and bits that an image file has, and whether Pillow opens it.

    Raises:
        DataCorrupt: the file is no image.
    """
    with opened(file, str(file)) as image:
        if isinstance(image, TiffBands):
            return image.pixel_format, False
        mode, tiff = image.mode, several_bands(file)
    if tiff is not None and tiff.channels != 3:
        return tiff.pixel_format, True
    by_mode = {"1": GREY, "L": GREY, "LA": PixelFormat(2), "RGBA": PixelFormat(4)}
    return PixelFormat(1, 16) if is_deep(mode) else by_mode.get(mode, COLOUR), True


class ImageHeader(NamedTuple):
    """What an image says of itself.

    Attributes:
        format: in Pillow's name.
        width: in pixels.
        height: in pixels.
        decoded: pixels, or values of an image of several bands, that are decoded at once: more
            than it has if it is stored in tiles that are larger.
    """

    format: str
    width: int
    height: int
    decoded: int


def read_image_size(file: Path, pixel_format: PixelFormat = COLOUR) -> tuple[int, int]:
    """The (height, width) that ``read_image`` gives without a size.

    Nothing is decoded but PNG files, whose orientation may stand behind their pixels.

    Raises:
        DataCorrupt: the file is no image.
    """
    if is_array_file(file):
        return read_array_header(file, str(file), MAX_PIXELS).size(pixel_format.channels, str(file))
    with opened(file, str(file)) as image:
        return (image.height, image.width) if isinstance(image, TiffBands) else _upright_size(image)


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) of an image that is opened and not decoded, once it is turned."""
    tags = getattr(image, "tag_v2", None)
    # Of a TIFF file the size may be turned already, while its orientation is still there.
    width, height = image.size if tags is None else (tags[side] for side in IMAGE_SIDES)
    turned = image.getexif().get(ExifTags.Base.Orientation) in _QUARTER_TURNS
    return (width, height) if turned else (height, width)


@contextmanager
def opened(
    source: Path | bytes, name: str, channels: int | None = None
) -> Iterator[Image.Image | TiffBands]:
    """The image, opened but not decoded: the bands of a TIFF file that Pillow does not open.

    Also of one that it opens, if it has so many bands as the ``channels`` that are wanted.
    """
    with one_error(name), pillow_is_quiet():
        if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
            raise DataCorrupt(f"{name} is not a file.")  # to open a pipe would wait for ever
        check_parts(source)
        image: Image.Image | TiffBands | None = several_bands(source) if channels else None
        if not isinstance(image, TiffBands) or image.channels != channels:
            try:
                image = open_image(io.BytesIO(source) if isinstance(source, bytes) else source)
            except UnidentifiedImageError:
                image = several_bands(source)
                if image is None:
                    raise
        with nullcontext(image) if isinstance(image, TiffBands) else image:
            yield image


@contextmanager
def one_error(name: str) -> Iterator[None]:
    """Whatever goes wrong with the image becomes a ``DataCorrupt`` that names it."""
    with read_errors(name):
        try:
            yield
        except UnidentifiedImageError as error:
            raise DataCorrupt(
                f"{name} is not an image that goen reads ({', '.join(FORMATS)}). Convert it to "
                "PNG, if it is an image."
            ) from error
        except Image.DecompressionBombError as error:
            raise DataCorrupt(
                f"{name} has more than {MAX_PIXELS:,} pixels, the most that are read. Shrink it "
                "first if it is genuine."
            ) from error
