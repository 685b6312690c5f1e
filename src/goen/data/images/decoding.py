"""Decoding of image files, which may come from anyone: the only place where goen does it."""

import io
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Condition
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from goen.data.images.array_files import read_array_header, read_array_image
from goen.data.images.formats import (
    FORMATS,
    IMAGE_SIDES,
    count_scans,
    has_run_lengths,
    open_image,
    pillow_is_quiet,
    pixels_at_once,
)
from goen.data.images.pixel_format import (
    COLOUR,
    GREY,
    PixelFormat,
    Pixels,
    crop_middle,
    proportional_size,
    resize_bands,
    resize_pillow,
    scaled,
    to_depth,
)
from goen.data.images.tiff_bands import TiffBands, check_parts, decode_bands, several_bands
from goen.errors import DataCorrupt, UsageError
from goen.io.arrays import is_array_file
from goen.io.storage_errors import read_errors

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

RESIZE_FILTER = "bilinear-antialiased"
"""How images are resized, in manifests; ``read_image`` says what it means."""

# EXIF orientations that exchange height and width.
_QUARTER_TURNS = (5, 6, 7, 8)
# Modes of Pillow whose bands are channels as they are.
_CHANNEL_MODES = {2: "LA", 4: "RGBA"}


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


_decoding = ByteBudget(DECODING_BYTES)


def read_image(
    source: Path | str | bytes | Image.Image,
    size: int | tuple[int, int] | None = None,
    name: str = "",
    pixel_format: PixelFormat = COLOUR,
    check: "Callable[[ImageHeader], None]" = lambda header: None,
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
        with _one_error(name), pillow_is_quiet():
            return _checked_and_decoded(source, size, name, pixel_format, copy=True)
    if isinstance(source, Path) and is_array_file(source):
        return _read_array(source, size, name, pixel_format)
    # Any image can be read as colour or grey; other channels are those that a file has.
    is_plain = pixel_format == COLOUR or pixel_format.channels == 1
    with _opened(source, name, None if is_plain else pixel_format.channels) as image:
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
    with _decoding.hold(values * (header.dtype.itemsize + 2)):
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
        raise _other_channels(name, tiff.channels, pixel_format)
    values = tiff.values_at_once
    if values > MAX_PIXELS:
        raise DataCorrupt(
            f"{name} has {values:,} values; at most {MAX_PIXELS:,} are read. Shrink it first if it "
            "is genuine."
        )
    # Pillow's pixels, those without padding, and those of the pixel format.
    with _decoding.hold(values * 12):
        found = decode_bands(source, tiff)
        if found.dtype == np.float32 and not (found.min() >= 0 and found.max() <= 1):
            raise ValueError("its floats should lie in [0, 1]")
        return resize_image(to_depth(found, pixel_format.bits), size, name)


def resize_image(image: Pixels, size: tuple[int, int] | None, name: str) -> Pixels:
    """An image ``(C, H, W)`` resized as ``read_image`` does, if a size is given.

    Raises:
        DataCorrupt: it is too narrow for its height.
    """
    if size is None or image.shape[1:] == size:
        return image
    _check_between(image.shape[1], image.shape[2], size, name)
    return resize_bands(image, size)


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


def _other_channels(name: str, channels: int, pixel_format: PixelFormat) -> DataCorrupt:
    return DataCorrupt(
        f"{name} has {channels} channels; {pixel_format.channels} are needed ({pixel_format})."
    )


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
    with _opened(file, str(file)) as image:
        if isinstance(image, TiffBands):
            return image.pixel_format, False
        mode, tiff = image.mode, several_bands(file)
    if tiff is not None and tiff.channels != 3:
        return tiff.pixel_format, True
    by_mode = {"1": GREY, "L": GREY, "LA": PixelFormat(2), "RGBA": PixelFormat(4)}
    return PixelFormat(1, 16) if _is_deep(mode) else by_mode.get(mode, COLOUR), True


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


def read_thumbnail(file: Path, side: int) -> Pixels:
    """The image for people to look at: RGB ``(3, H, W)`` uint8, neither side above ``side``.

    A JPEG is decoded at a reduced scale, which is several times faster, so its pixels are not quite
    those that ``read_image`` would give. A smaller image stays as it is.

    Raises:
        DataCorrupt: as ``read_image``.
    """
    with _opened(file, str(file)) as image:
        if isinstance(image, TiffBands):
            raise _other_channels(str(file), image.channels, COLOUR)
        image.draft(None, (2 * side, 2 * side))
        return _checked_and_decoded(image, None, str(file), side=side)


def read_image_size(file: Path, pixel_format: PixelFormat = COLOUR) -> tuple[int, int]:
    """The (height, width) that ``read_image`` gives without a size.

    Nothing is decoded but PNG files, whose orientation may stand behind their pixels.

    Raises:
        DataCorrupt: the file is no image.
    """
    if is_array_file(file):
        return read_array_header(file, str(file), MAX_PIXELS).size(pixel_format.channels, str(file))
    with _opened(file, str(file)) as image:
        return (image.height, image.width) if isinstance(image, TiffBands) else _upright_size(image)


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) of an image that is opened and not decoded, once it is turned."""
    tags = getattr(image, "tag_v2", None)
    # Of a TIFF file the size may be turned already, while its orientation is still there.
    width, height = image.size if tags is None else (tags[side] for side in IMAGE_SIDES)
    turned = image.getexif().get(ExifTags.Base.Orientation) in _QUARTER_TURNS
    return (width, height) if turned else (height, width)


@contextmanager
def _opened(
    source: Path | bytes, name: str, channels: int | None = None
) -> Iterator[Image.Image | TiffBands]:
    """The image, opened but not decoded: the bands of a TIFF file that Pillow does not open.

    Also of one that it opens, if it has so many bands as the ``channels`` that are wanted.
    """
    with _one_error(name), pillow_is_quiet():
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


@contextmanager
def _one_error(name: str) -> Iterator[None]:
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
    pixels = _checked_pixels(image, name)
    width = size[1] if size is not None else side or 0
    between = width * max(image.size)  # it may be turned
    with _decoding.hold(pixels * (_bytes_per_pixel(image) + 4 * copy) + 4 * between):
        image.load()
        upright = ImageOps.exif_transpose(image) if copy else image
        ImageOps.exif_transpose(upright, in_place=True)
        if side is not None:
            size = _within(upright, side)
        if size is not None:
            _check_between(upright.height, upright.width, size, name)
        if pixel_format == COLOUR:
            return _decoded(upright, size)
        bands = _as_channels(upright, pixel_format, name)
        return bands if size is None else resize_bands(bands, size)


def _checked_pixels(image: Image.Image, name: str) -> int:
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


def _within(image: Image.Image, side: int) -> tuple[int, int]:
    """(height, width) in the image's proportions, neither above ``side``."""
    scale = min(1, side / max(image.size))
    return max(1, round(scale * image.height)), max(1, round(scale * image.width))


def _check_between(height: int, width: int, size: tuple[int, int], name: str) -> None:
    """Raise a ``DataCorrupt`` if the image is too large once its width is resized."""
    if size[1] * height > MAX_PIXELS:
        raise DataCorrupt(
            f"{name} has {width}×{height} pixels: too narrow for its height to "
            f"be resized to a width of {size[1]}. Crop it first if it is genuine."
        )


def _as_channels(image: Image.Image, pixel_format: PixelFormat, name: str) -> Pixels:
    """The image ``(C, H, W)`` in a pixel format that is not ``COLOUR``; see ``read_image``."""
    if pixel_format.channels == 1:
        if _is_deep(image.mode):
            return _to_bits(np.asarray(image), image.mode, pixel_format)[None]
        flat = _to_grey_or_rgb(image)
        return to_depth(np.array(flat.convert("L"))[None], pixel_format.bits)
    if pixel_format.channels == 3:  # of 16 bits
        return to_depth(_decoded(image, None), pixel_format.bits)
    if image.mode != _CHANNEL_MODES.get(pixel_format.channels):
        raise _other_channels(name, len(image.getbands()), pixel_format)
    return to_depth(np.asarray(image).transpose(2, 0, 1), pixel_format.bits)


def _bytes_per_pixel(image: Image.Image) -> int:
    """What decoding holds at its peak: Pillow's pixels, and a converted copy of them."""
    if image.mode in ("1", "L"):
        return 2
    return 12 if image.mode in ("I", "F") else 8


def _decoded(image: Image.Image, size: tuple[int, int] | None) -> Pixels:
    flat = _to_grey_or_rgb(image)
    flat = flat if size is None else resize_pillow(flat, size)
    # Resized first: the channels of a grey image are equal, and one is cheaper than three.
    rgb = flat if flat.mode == "RGB" else flat.convert("RGB")
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def _to_grey_or_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("RGB", "L") and "transparency" not in image.info:
        return image
    if _is_deep(image.mode):
        return Image.fromarray(_to_bits(np.asarray(image), image.mode, GREY))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "black"), rgba).convert("RGB")
    return image.convert("RGB")


def _to_bits(values: NDArray[Any], mode: str, pixel_format: PixelFormat) -> Pixels:
    """Grey values of 16 or 32 bits, or of floats, as 8 or 16 bits; Pillow would clip them at 255.

    16 bits are scaled by their range. The range of others is not known: floats up to 1 are taken
    for shares of white, values up to 255 for 8 bits, values up to 65,535 for 16; else the lowest
    becomes black and the highest white.
    """
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("it holds NaN or infinity")
    whites = {"F": (1.0, 255.0, 65535.0), "I": (255.0, 65535.0)}.get(mode, (65535.0,))
    white = None if low < 0 else next((white for white in whites if high <= white), None)
    return scaled(values, white or high, pixel_format, None if white else low)


def _is_deep(mode: str) -> bool:
    """Whether the values of this mode of Pillow have more than 8 bits."""
    return mode in ("I", "F") or mode.startswith("I;")
