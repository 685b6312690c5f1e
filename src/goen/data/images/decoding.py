"""Decoding of image files, which may come from anyone: the only place where goen does it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np
from PIL import Image, ImageOps

from goen.data.images.array_files import read_array_header, read_array_image
from goen.data.images.formats import pillow_is_quiet, pixels_at_once
from goen.data.images.headers import ImageHeader, one_error, opened
from goen.data.images.limits import MAX_PIXELS, check_resized, checked_pixels, memory
from goen.data.images.pillow_modes import as_channels, as_rgb, bytes_per_pixel, other_channels
from goen.data.images.pixel_format import COLOUR, PixelFormat, Pixels, to_depth
from goen.data.images.resizing import crop_middle, proportional_size, resize_bands, resize_image
from goen.data.images.tiff_bands import TiffBands, decode_bands
from goen.errors import DataCorrupt, UsageError
from goen.io.arrays import is_array_file


def read_image(
    source: Path | str | bytes | Image.Image,
    size: int | tuple[int, int] | None = None,
    name: str = "",
    pixel_format: PixelFormat = COLOUR,
    check: Callable[[ImageHeader], None] = lambda header: None,
    shorter_side: int | None = None,
) -> Pixels:
    """The image as ``(C, H, W)``, resized to ``size`` (height, width) if given.

    ``goen.read_image("photo.jpg", gate.image_size, pixel_format=gate.pixel_format)`` is what ``goen
    score`` gives to a gate. The result depends on the pixels alone: a JPEG is decoded at its full
    size. Takes the ``FORMATS``, in any mode. As RGB of 8 bits, the default, transparency is over
    black. As grey, colours become their luma (Pillow's ``L``: 0.299 R + 0.587 G + 0.114 B), and 16
    bits stay 16 bits if the pixel format has so many. Other channels are read from files that have
    as many: TIFF files of several bands, arrays, images with transparency. An EXIF orientation is
    applied, of an animation the first frame counts. An NPY file, or an NPZ file with one array,
    holds an image ``(H, W)``, ``(C, H, W)`` or ``(H, W, C)``, uint8, uint16 or floats in [0, 1].

    The whole image is stretched to the size, by Pillow's ``BILINEAR`` filter, which widens when it
    shrinks: the width, then the height, each rounded to 8 bits; 16 bits once.

    Args:
        source: a file, the content of one, or an image of Pillow's, which stays as it is.
        size: (height, width) or one number, such as a gate's ``image_size``; its own if not given.
        name: for error messages.
        pixel_format: channels and bits, such as a gate's ``pixel_format``.
        check: is given the header of a file before anything is decoded, and may raise.
        shorter_side: keeps proportions: its length in pixels; ``size`` is the middle that is kept.

    Raises:
        DataCorrupt: no image of these formats, one that ends early, has other channels, or more
            than ``MAX_PIXELS`` pixels (values, if it is no image of Pillow's).
        UsageError: a size that is none.

    Example:
        >>> read_image(Image.new("L", (640, 480), 7), (2, 3))[0].tolist()
        [[7, 7, 7], [7, 7, 7]]
    """
    size = (size, size) if isinstance(size, int) else size
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise UsageError(f"size is (height, width) or one number, at least 1; got {size!r}.")
    if shorter_side is not None:
        whole = read_image(source, None, name, pixel_format, check)
        return _cropped(whole, shorter_side, size, name or str(source))
    source = Path(source) if isinstance(source, str) else source
    name = name or (str(source) if isinstance(source, Path) else "image")
    if isinstance(source, Image.Image):
        with one_error(name), pillow_is_quiet():
            return _checked_and_decoded(source, size, name, pixel_format, copy=True)
    if isinstance(source, Path) and is_array_file(source):
        return _read_array(source, size, name, pixel_format)
    # Any image can be read as colour or grey; other channels are those that a file has.
    is_plain = pixel_format == COLOUR or pixel_format.channels == 1
    with opened(source, name, None if is_plain else pixel_format.channels) as image:
        if isinstance(image, TiffBands):
            check(ImageHeader("TIFF", image.width, image.height, image.values_at_once))
            return _read_bands(source, image, size, name, pixel_format)
        check(ImageHeader(image.format or "", *image.size, pixels_at_once(image)))
        return _checked_and_decoded(image, size, name, pixel_format)


def _read_array(
    file: Path, size: tuple[int, int] | None, name: str, pixel_format: PixelFormat
) -> Pixels:
    header = read_array_header(file, name, MAX_PIXELS)
    values = int(np.prod(header.image_shape))
    with memory.hold(values * (header.dtype.itemsize + 2)):
        image = read_array_image(file, pixel_format, name, MAX_PIXELS)
        return resize_image(image, size, name)


def _read_bands(
    source: Path | bytes,
    tiff: TiffBands,
    size: tuple[int, int] | None,
    name: str,
    pixel_format: PixelFormat,
) -> Pixels:
    if tiff.channels != pixel_format.channels:
        raise other_channels(name, tiff.channels, pixel_format)
    values = tiff.values_at_once
    if values > MAX_PIXELS:
        raise DataCorrupt(
            f"{name} has {values:,} values; at most {MAX_PIXELS:,} are read. Shrink it first if it "
            "is genuine."
        )
    # Pillow's pixels, those without padding, and those of the pixel format.
    with memory.hold(values * 12):
        found = decode_bands(source, tiff)
        if found.dtype == np.float32 and not (found.min() >= 0 and found.max() <= 1):
            raise ValueError("its floats should lie in [0, 1]")
        return resize_image(to_depth(found, pixel_format.bits), size, name)


def _cropped(image: Pixels, shorter_side: int, size: tuple[int, int] | None, name: str) -> Pixels:
    if size is None or shorter_side < max(size):
        raise UsageError(
            "shorter_side is at least the size that is cropped from it, got "
            f"{shorter_side} and {size}."
        )
    height, width = image.shape[1:]
    found = proportional_size((height, width), shorter_side)
    if max(found[0] * found[1], found[1] * height) > MAX_PIXELS:
        raise DataCorrupt(
            f"{name} has {width}×{height} pixels: too narrow for its shorter side to be resized to "
            f"{shorter_side}. Crop it first if it is genuine."
        )
    return np.ascontiguousarray(crop_middle(resize_bands(image, found), size))


def read_thumbnail(file: Path, side: int) -> Pixels:
    """The image for people to look at: RGB ``(3, H, W)`` uint8, neither side above ``side``.

    A JPEG is decoded at a reduced scale, which is several times faster, so its pixels are not quite
    those that ``read_image`` would give. A smaller image stays as it is.

    Raises:
        DataCorrupt: as ``read_image``.
    """
    with opened(file, str(file)) as image:
        if isinstance(image, TiffBands):
            raise other_channels(str(file), image.channels, COLOUR)
        image.draft(None, (2 * side, 2 * side))
        return _checked_and_decoded(image, None, str(file), side=side)


def are_pil_images(value: object) -> TypeGuard[Sequence[Image.Image]]:
    """Whether this is a list or tuple of images of Pillow, and not empty."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(isinstance(item, Image.Image) for item in value)


def image_batches(
    images: Sequence[Image.Image | Path],
    size: tuple[int, int],
    batch_size: int,
    pixel_format: PixelFormat = COLOUR,
) -> Iterator[Pixels]:
    """Files or images of Pillow as arrays ``(n, C, H, W)`` of this size.

    An error has the name of the file, or the number of the image.
    """
    for start in range(0, len(images), batch_size):
        part = enumerate(images[start : start + batch_size], start)
        named = [(one, "" if isinstance(one, Path) else f"image {n}") for n, one in part]
        yield np.stack([read_image(one, size, name, pixel_format) for one, name in named])


def _checked_and_decoded(
    image: Image.Image,
    size: tuple[int, int] | None,
    name: str,
    pixel_format: PixelFormat = COLOUR,
    *,
    copy: bool = False,
    side: int | None = None,
) -> Pixels:
    """The pixels, if they are not too much work; of an image that is not ours in a ``copy``.

    With ``side`` in place of a size, neither side is above it; a smaller image stays as it is.
    The image whose width is resized and whose height is not yet counts as well: of an image
    that is narrow and very long it would be far larger than both ends.
    """
    pixels = checked_pixels(image, name)
    width = size[1] if size is not None else side or 0
    between = width * max(image.size)  # it may be turned
    with memory.hold(pixels * (bytes_per_pixel(image) + 4 * copy) + 4 * between):
        image.load()
        upright = ImageOps.exif_transpose(image) if copy else image
        ImageOps.exif_transpose(upright, in_place=True)
        if side is not None:
            size = _within(upright, side)
        if size is not None:
            check_resized(upright.height, upright.width, size, name)
        if pixel_format == COLOUR:
            return as_rgb(upright, size)
        bands = as_channels(upright, pixel_format, name)
        return bands if size is None else resize_bands(bands, size)


def _within(image: Image.Image, side: int) -> tuple[int, int]:
    """(height, width) in the image's proportions, neither above ``side``."""
    scale = min(1, side / max(image.size))
    return max(1, round(scale * image.height)), max(1, round(scale * image.width))
