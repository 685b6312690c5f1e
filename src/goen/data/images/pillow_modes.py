"""Images of Pillow, in any of its modes, as arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from goen.data.images.pixel_format import GREY, PixelFormat, Pixels, scaled, to_depth
from goen.data.images.resizing import resize_pillow
from goen.errors import DataCorrupt

# Modes of Pillow whose bands are channels as they are.
_CHANNEL_MODES = {2: "LA", 4: "RGBA"}


def other_channels(name: str, channels: int, pixel_format: PixelFormat) -> DataCorrupt:
    """The error of an image with so many channels."""
    return DataCorrupt(
        f"{name} has {channels} channels; {pixel_format.channels} are needed ({pixel_format})."
    )


def as_channels(image: Image.Image, pixel_format: PixelFormat, name: str) -> Pixels:
    """The image ``(C, H, W)`` in a pixel format that is not ``COLOUR``; see ``read_image``."""
    if pixel_format.channels == 1:
        if is_deep(image.mode):
            return _to_bits(np.asarray(image), image.mode, pixel_format)[None]
        flat = _to_grey_or_rgb(image)
        return to_depth(np.array(flat.convert("L"))[None], pixel_format.bits)
    if pixel_format.channels == 3:  # of 16 bits
        return to_depth(as_rgb(image, None), pixel_format.bits)
    if image.mode != _CHANNEL_MODES.get(pixel_format.channels):
        raise other_channels(name, len(image.getbands()), pixel_format)
    return to_depth(np.asarray(image).transpose(2, 0, 1), pixel_format.bits)


def bytes_per_pixel(image: Image.Image) -> int:
    """What decoding holds at its peak: Pillow's pixels, and a converted copy of them."""
    if image.mode in ("1", "L"):
        return 2
    return 12 if image.mode in ("I", "F") else 8


def as_rgb(image: Image.Image, size: tuple[int, int] | None) -> Pixels:
    flat = _to_grey_or_rgb(image)
    flat = flat if size is None else resize_pillow(flat, size)
    # Resized first: the channels of a grey image are equal, and one is cheaper than three.
    rgb = flat if flat.mode == "RGB" else flat.convert("RGB")
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def _to_grey_or_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("RGB", "L") and "transparency" not in image.info:
        return image
    if is_deep(image.mode):
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


def is_deep(mode: str) -> bool:
    """Whether the values of this mode of Pillow have more than 8 bits."""
    return mode in ("I", "F") or mode.startswith("I;")
