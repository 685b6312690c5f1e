"""Decoding of picture files, which may come from anyone: the only place where goen does it."""

import io
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from goen.data.imageset import Pixels
from goen.errors import DataCorrupt, UsageError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

# A picture of more pixels than this is a bomb or a mistake; Pillow's own limit is the same size.
MAX_PIXELS = 89_478_485

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded, in Pillow's names; a phone's MPO is a JPEG. One format per suffix above."""


def open_picture(file: Path | BinaryIO) -> Image.Image:
    """The picture, opened but not decoded, if it is of one of ``FORMATS``, whatever its name.

    Pillow by itself tries every decoder it has, and the one for EPS starts Ghostscript.

    Raises:
        UnidentifiedImageError: it is of no such format.
    """
    return Image.open(file, formats=FORMATS)


def find_pictures(folder: Path) -> Iterator[Path]:
    """All pictures below a folder, sorted within each folder; hidden folders are passed over.

    Links are followed, but no folder is entered twice.

    Raises:
        UsageError: a folder that may not be read.
    """
    entered: set[str] = set()

    def refuse(error: OSError) -> None:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error

    for place, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(place)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, f) for f in sorted(files) if Path(f).suffix.lower() in SUFFIXES)


def read_picture(source: Path | bytes, size: tuple[int, int] | None, name: str = "") -> Pixels:
    """The picture as RGB, ``(3, H, W)`` uint8, resized to ``size`` (height, width) if given.

    Takes the ``FORMATS``, in any mode: grey, palette, CMYK, 16 bit and transparent pictures
    become RGB (transparency over black), an EXIF orientation is applied, of an animation the
    first frame counts.

    Raises:
        DataCorrupt: the file is no picture of these formats, ends early, or would unpack to more
            than ``MAX_PIXELS`` pixels.
    """
    name = name or (str(source) if isinstance(source, Path) else "picture")
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
            raise DataCorrupt(f"{name} is not a file.")  # to open a pipe would wait for ever
        with warnings.catch_warnings():
            # Pillow only warns between one and two times its limit, and about odd metadata.
            warnings.simplefilter("ignore")
            with open_picture(opened) as picture:
                pixels = picture.width * picture.height
                if pixels > MAX_PIXELS:
                    raise DataCorrupt(
                        f"{name} claims {picture.width}×{picture.height} pixels; at most "
                        f"{MAX_PIXELS:,} are read. Shrink it first if it is genuine."
                    )
                if size is not None:
                    picture.draft("RGB", (size[1], size[0]))  # JPEG: decode no more than needed
                picture.load()
                rgb = _to_rgb(ImageOps.exif_transpose(picture))
    except FileNotFoundError as error:
        raise DataCorrupt(f"{name} does not exist.") from error
    except UnidentifiedImageError as error:
        raise DataCorrupt(
            f"{name} is not a picture that goen reads ({', '.join(FORMATS)}). Convert it to PNG, "
            "if it is a picture."
        ) from error
    except Image.DecompressionBombError as error:
        raise DataCorrupt(
            f"{name} claims more than {2 * MAX_PIXELS:,} pixels; at most {MAX_PIXELS:,} are read. "
            "Shrink it first if it is genuine."
        ) from error
    except DataCorrupt:
        raise
    except MemoryError as error:
        raise DataCorrupt(f"{name} needs more memory than there is. Shrink it first.") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's word
            raise DataCorrupt(f"{name} cannot be opened: {error.strerror}.") from error
        # Pillow's decoders let almost any exception out of a broken file (OSError, ValueError,
        # SyntaxError, struct.error, IndexError, zlib.error ...): to the user they are one thing.
        raise DataCorrupt(f"{name} is broken or cut short: {error}.") from error
    if size is not None and rgb.size != (size[1], size[0]):
        rgb = rgb.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
        # 16 and 32 bit grey: Pillow would clip at 255. 16 bit is scaled by its range; of anything
        # else the range is not known, so its own lowest and highest value become black and white.
        values = np.asarray(picture).astype(np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it holds NaN or infinity")
        if picture.mode == "F" or values.min() < 0 or values.max() > 65535:
            low, high = float(values.min()), float(values.max())
            values = (values - low) / ((high - low) or 1.0) * 65535
        return Image.fromarray((values / 257).round().astype(np.uint8)).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "black"), rgba).convert("RGB")
    return picture.convert("RGB")
