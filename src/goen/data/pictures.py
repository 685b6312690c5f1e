"""Decoding of picture files, which may come from anyone: the only place where goen does it."""

import io
import os
import stat
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock
from typing import Any, BinaryIO, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from goen.data.imageset import Pixels
from goen.errors import DataCorrupt, UsageError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

# A picture of more pixels than this is a bomb or a mistake; Pillow refuses still larger ones. The
# 108-megapixel photographs of phones are below it.
MAX_PIXELS = 178_956_970
# What all threads together may hold in memory while they decode. A larger picture is decoded alone.
DECODING_BYTES = 1 << 29

DECODING = "rgb-8-bit"
"""How pictures are decoded, in manifests; ``read_picture`` says what it means."""

RESIZE_FILTER = "bilinear-antialiased"
"""How pictures are resized, in manifests; ``read_picture`` says what it means."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded, in Pillow's names; a phone's MPO is a JPEG. One format per suffix above."""


# Of skipped files, the endings that a message names.
_MOST_ENDINGS = 5
# EXIF orientations that exchange height and width.
_QUARTER_TURNS = (5, 6, 7, 8)
# Rows of a deep grey picture that are converted at once: the copy in float64 stays small.
_ROWS_AT_ONCE = 256


def open_picture(file: Path | BinaryIO) -> Image.Image:
    """The picture, opened but not decoded, if it is of one of ``FORMATS``, whatever its name.

    Pillow by itself tries every decoder it has, and the one for EPS starts Ghostscript.

    Raises:
        UnidentifiedImageError: it is of no such format.
    """
    return Image.open(file, formats=FORMATS)


def find_pictures(
    folder: Path, skipped: Counter[str] | None = None, passed: set[str] | None = None
) -> Iterator[Path]:
    """All pictures below a folder, sorted within each folder.

    A file is a picture if its name ends like one (it may be damaged) or if its content begins like
    one, whatever its name: the formats are those of ``read_picture``. Hidden files and folders are
    passed over. Links are followed, but no folder is entered twice.

    Args:
        folder: where to look.
        skipped: counts the other files, by the ending of their names.
        passed: absolute paths of files to pass over, and of the folders that were entered, which
            several calls may share.

    Raises:
        UsageError: a folder that may not be read.
    """
    counted = Counter[str]() if skipped is None else skipped
    seen = set[str]() if passed is None else passed

    def refuse(error: OSError) -> None:
        if isinstance(error, FileNotFoundError) and error.filename != str(folder):
            return  # it was there a moment ago: whoever tidies up does not stop the search
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error

    for place, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in (Path(place, name) for name in sorted(files)):
            if str(file.absolute()) in seen:
                continue
            if file.name.startswith("."):
                counted["hidden"] += 1
            elif file.suffix.lower() in SUFFIXES or begins_as_picture(file):
                yield file
            else:
                counted[file.suffix.lower() or "no ending"] += 1


def begins_as_picture(source: Path | bytes) -> bool:
    """Whether a file, or the content of one, begins like a picture of ``FORMATS``."""
    try:
        if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
            return False  # to open a pipe would wait for ever
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with _pillow_is_quiet(), open_picture(file):
            return True
    except Image.DecompressionBombError:
        return True  # a picture, though too large: whoever reads it gets the reason
    except Exception:  # Pillow's decoders let almost any exception out of what is no picture
        return False


def describe_skipped(skipped: Counter[str]) -> str:
    """How many files were skipped, by the ending of their names.

    Example:
        >>> describe_skipped(Counter({".txt": 2, "no ending": 1}))
        '3 files skipped, not in a format that goen reads (2 .txt, 1 no ending)'
    """
    kinds = [f"{count:,} {ending}" for ending, count in skipped.most_common(_MOST_ENDINGS)]
    more = ", ..." if len(skipped) > _MOST_ENDINGS else ""
    files = "1 file" if skipped.total() == 1 else f"{skipped.total():,} files"
    return f"{files} skipped, not in a format that goen reads ({', '.join(kinds)}{more})"


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
_quiet_lock = Lock()
_quiet_users = 0
_quiet = warnings.catch_warnings()


@contextmanager
def _pillow_is_quiet() -> Iterator[None]:
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


def read_picture(
    source: Path | str | bytes | Image.Image,
    size: tuple[int, int] | None = None,
    name: str = "",
) -> Pixels:
    """The picture as RGB, ``(3, H, W)`` uint8, resized to ``size`` (height, width) if given.

    ``goen.read_picture("photo.jpg", gate.image_size)`` is what ``goen score`` gives to a gate.

    The result depends on the pixels alone, not on the file format: a JPEG is decoded at its full
    size. Takes the ``FORMATS``, in any mode: grey, palette, CMYK, 16 bit and transparent pictures
    become RGB of 8 bits (transparency over black), an EXIF orientation is applied, of an animation
    the first frame counts.

    The whole picture is stretched to the size, without a crop, by a bilinear (triangle) filter that
    is widened when it shrinks, so that every pixel counts: Pillow's ``BILINEAR``. The width comes
    first, then the height, each rounded to 8 bits.

    Args:
        source: a file, the content of one, or an image of Pillow's, which stays as it is.
        size: (height, width) to resize to, such as a gate's ``image_size``; the picture's own if
            not given.
        name: for error messages.

    Raises:
        DataCorrupt: the file is no picture of these formats, ends early, or has more than
            ``MAX_PIXELS`` pixels.
        UsageError: a size that is none.

    Example:
        >>> read_picture(Image.new("L", (640, 480), 7), (2, 3))[0].tolist()
        [[7, 7, 7], [7, 7, 7]]
    """
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise UsageError(f"size is (height, width), both at least 1; got {size!r}.")
    source = Path(source) if isinstance(source, str) else source
    name = name or (str(source) if isinstance(source, Path) else "picture")
    if isinstance(source, Image.Image):
        with _one_error(name), _pillow_is_quiet():
            return _checked_and_decoded(source, size, name, copy=True)
    with _opened(source, name) as picture:
        return _checked_and_decoded(picture, size, name)


class PictureHeader(NamedTuple):
    """What a picture says of itself: its format in Pillow's name, and its size in pixels."""

    format: str
    width: int
    height: int


def read_header(source: Path | bytes, name: str) -> PictureHeader:
    """The header of a picture; nothing is decoded.

    Args:
        source: a file, or the content of one.
        name: for error messages.

    Raises:
        DataCorrupt: as ``read_picture``.
    """
    with _opened(source, name) as picture:
        return PictureHeader(picture.format or "", picture.width, picture.height)


def read_thumbnail(file: Path, side: int) -> Pixels:
    """The picture for people to look at: RGB ``(3, H, W)`` uint8, neither side above ``side``.

    A JPEG is decoded at a reduced scale, which is several times faster, so its pixels are not quite
    those that ``read_picture`` would give. A smaller picture stays as it is.

    Raises:
        DataCorrupt: as ``read_picture``.
    """
    with _opened(file, str(file)) as picture:
        picture.draft(None, (2 * side, 2 * side))
        scale = min(1, side / max(picture.size))
        height, width = (max(1, round(scale * length)) for length in _upright_size(picture))
        return _checked_and_decoded(picture, (height, width), str(file))


def picture_size(file: Path) -> tuple[int, int]:
    """The (height, width) that ``read_picture`` gives without a size; decodes nothing.

    Raises:
        DataCorrupt: the file is no picture.
    """
    with _opened(file, str(file)) as picture:
        return _upright_size(picture)


def _upright_size(picture: Image.Image) -> tuple[int, int]:
    width, height = picture.size
    turned = picture.getexif().get(ExifTags.Base.Orientation) in _QUARTER_TURNS
    return (width, height) if turned else (height, width)


@contextmanager
def _opened(source: Path | bytes, name: str) -> Iterator[Image.Image]:
    """The picture, opened but not decoded."""
    with _one_error(name), _pillow_is_quiet():
        if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
            raise DataCorrupt(f"{name} is not a file.")  # to open a pipe would wait for ever
        with open_picture(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
            yield picture


def are_pictures(value: object) -> TypeGuard[Sequence[Image.Image]]:
    """Whether this is a list or tuple of pictures of Pillow, and not empty."""
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(isinstance(item, Image.Image) for item in value)
    )


def picture_batches(
    pictures: Sequence[Image.Image], size: tuple[int, int], batch_size: int
) -> Iterator[Pixels]:
    """The pictures as images ``(n, 3, H, W)`` of this size; an error gives a picture's number."""
    for start in range(0, len(pictures), batch_size):
        part = enumerate(pictures[start : start + batch_size], start)
        yield np.stack([read_picture(p, size, f"picture {number}") for number, p in part])


@contextmanager
def _one_error(name: str) -> Iterator[None]:
    """Whatever goes wrong with the picture becomes a ``DataCorrupt`` that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataCorrupt(f"{name} does not exist.") from error
    except UnidentifiedImageError as error:
        raise DataCorrupt(
            f"{name} is not a picture that goen reads ({', '.join(FORMATS)}). Convert it to PNG, "
            "if it is a picture."
        ) from error
    except Image.DecompressionBombError as error:
        raise DataCorrupt(
            f"{name} has more than {MAX_PIXELS:,} pixels, the most that are read. Shrink it first "
            "if it is genuine."
        ) from error
    except DataCorrupt:
        raise
    except MemoryError as error:
        raise DataCorrupt(f"{name} needs more memory than there is. Shrink it first.") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system
            raise DataCorrupt(f"{name} cannot be opened: {error.strerror}.") from error
        # Pillow's decoders let almost any exception out of a broken file (OSError, ValueError,
        # SyntaxError, struct.error, IndexError, zlib.error ...): to the user they are one thing.
        raise DataCorrupt(f"{name} is broken or cut short: {error}.") from error


def _checked_and_decoded(
    picture: Image.Image, size: tuple[int, int] | None, name: str, *, copy: bool = False
) -> Pixels:
    """The pixels, if there are not too many; a ``copy`` is decoded where the picture is not ours.

    The picture whose width is resized and whose height is not yet counts as well: of a picture
    that is narrow and very long it would be far larger than both ends.
    """
    pixels = picture.width * picture.height
    if pixels > MAX_PIXELS:
        raise DataCorrupt(
            f"{name} has {picture.width}×{picture.height} pixels; at most {MAX_PIXELS:,} "
            "are read. Shrink it first if it is genuine."
        )
    between = 0 if size is None else size[1] * max(picture.size)  # it may be turned
    with _decoding.hold(pixels * (_bytes_per_pixel(picture) + 4 * copy) + 4 * between):
        picture.load()
        upright = ImageOps.exif_transpose(picture) if copy else picture
        ImageOps.exif_transpose(upright, in_place=True)
        if size is not None and size[1] * upright.height > MAX_PIXELS:
            raise DataCorrupt(
                f"{name} has {upright.width}×{upright.height} pixels: too narrow for its height to "
                f"be resized to a width of {size[1]}. Crop it first if it is genuine."
            )
        return _decoded(upright, size)


def _bytes_per_pixel(picture: Image.Image) -> int:
    """What decoding holds at its peak: Pillow's pixels, and a converted copy of them."""
    if picture.mode in ("1", "L"):
        return 2
    return 12 if picture.mode in ("I", "F") else 8


def _decoded(picture: Image.Image, size: tuple[int, int] | None) -> Pixels:
    flat = _to_grey_or_rgb(picture)
    if size is not None:
        # One side at a time: Pillow 13 takes the height first where that is faster, Pillow 12 does
        # not, and what is rounded between the two depends on the order.
        for step in ((size[1], flat.height), (size[1], size[0])):
            flat = flat if flat.size == step else flat.resize(step, Image.Resampling.BILINEAR)
    # Resized first: the channels of a grey picture are equal, and one is cheaper than three.
    rgb = flat if flat.mode == "RGB" else flat.convert("RGB")
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def _to_grey_or_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode in ("RGB", "L") and "transparency" not in picture.info:
        return picture
    if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
        return Image.fromarray(_to_8_bits(np.asarray(picture), picture.mode))
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "black"), rgba).convert("RGB")
    return picture.convert("RGB")


def _to_8_bits(values: NDArray[Any], mode: str) -> NDArray[np.uint8]:
    """Grey values of 16 or 32 bits, or of floats, as 8 bits; Pillow would clip them at 255.

    16 bits are scaled by their range. The range of others is not known: floats up to 1 are taken
    for shares of white, values up to 255 for 8 bits, values up to 65,535 for 16; else the lowest
    becomes black and the highest white.
    """
    low, high = values.min(), values.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("it holds NaN or infinity")
    out = np.empty(values.shape, np.uint8)
    white = _white(float(low), float(high), mode)
    for start in range(0, len(values), _ROWS_AT_ONCE):
        rows = values[start : start + _ROWS_AT_ONCE].astype(np.float64)
        if white is None:
            scaled = (rows - low) / ((float(high) - float(low)) or 1.0) * 255
        else:
            scaled = rows / (white / 255)  # exact for 1 and 257
        out[start : start + _ROWS_AT_ONCE] = scaled.round()
    return out


def _white(low: float, high: float, mode: str) -> float | None:
    """The value that stands for white; ``None`` if it is not known. See ``_to_8_bits``."""
    if mode.startswith("I;16"):
        return 65535.0
    whites = (1.0, 255.0, 65535.0) if mode == "F" else (255.0, 65535.0)
    return None if low < 0 else next((white for white in whites if high <= white), None)
