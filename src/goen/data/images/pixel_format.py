"""How pixels are stored: channels and bits. Conversion between depths."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from goen.errors import UsageError

Bits = Literal[8, 16]
Pixels = NDArray[np.uint8 | np.uint16]
"""An image ``(C, H, W)`` or several ``(N, C, H, W)``, of 8 or 16 bits."""

# Rows that are converted at once: a copy in float64 stays small.
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class PixelFormat:
    """What the pixels of an image are.

    Attributes:
        channels: 3 for colour, 1 for grey, or as many bands as there are.
        bits: of each value.

    Example:
        >>> str(PixelFormat(13, 16)), str(COLOUR), str(PixelFormat(1))
        ('13 channels of 16 bits', 'colour', 'grey')
    """

    channels: int = 3
    bits: Bits = 8

    def __post_init__(self) -> None:
        if self.channels < 1 or self.bits not in (8, 16):
            raise UsageError(
                f"Pixels have one channel or more of 8 or 16 bits, got {self.channels} of "
                f"{self.bits}."
            )

    def __str__(self) -> str:
        depth = "" if self.bits == 8 else f" of {self.bits} bits"
        if self.channels in (1, 3):
            return f"{'grey' if self.channels == 1 else 'colour'}{depth}"
        return f"{self.channels} channels{depth}"

    @property
    def dtype(self) -> np.dtype[np.uint8 | np.uint16]:
        """That of an array."""
        return np.dtype(np.uint8 if self.bits == 8 else np.uint16)

    @property
    def is_shown_as_it_is(self) -> bool:
        """Whether people see it as it is; else see ``for_people``."""
        return self.bits == 8 and self.channels in (1, 3, 4)

    @property
    def decoding(self) -> str:
        """How images are decoded, in manifests; ``goen.read_image`` says what it means."""
        if self == COLOUR:
            return "rgb-8-bit"
        return f"{self.channels}-channels-{self.bits}-bit"


COLOUR = PixelFormat(3, 8)
GREY = PixelFormat(1, 8)


def to_depth(values: NDArray[Any], bits: Bits) -> Pixels:
    """Whole numbers of 8 or 16 bits, or floats in [0, 1], in another depth, rounded.

    White stays white: 255 of 8 bits is 65,535 of 16.

    Example:
        >>> to_depth(np.array([[[0, 128, 255]]], np.uint8), 16).tolist()
        [[[0, 32896, 65535]]]
    """
    white = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}.get(values.dtype, 1.0)
    target = PixelFormat(1, bits)
    if values.dtype == target.dtype:
        return values
    return scaled(values, white, target)


def scaled(
    values: NDArray[Any], white: float, pixel_format: PixelFormat, black: float | None = None
) -> Pixels:
    """Values whose ``white`` is known, and ``black`` if it is not 0, in the format's depth."""
    most = 255.0 if pixel_format.bits == 8 else 65535.0
    rows = values.reshape(-1, values.shape[-1])
    out: Pixels = np.empty(rows.shape, pixel_format.dtype)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE].astype(np.float64)
        if black is None:
            part = part / (white / most)  # exact for 1 and 257
        else:
            part = (part - black) / ((white - black) or 1.0) * most
        out[start : start + _ROWS_AT_ONCE] = part.round()
    return out.reshape(values.shape)


def for_people(image: Pixels) -> NDArray[np.uint8]:
    """An image ``(C, H, W)`` as RGB ``(3, H, W)`` of 8 bits, to look at.

    Grey and colour of 8 bits are shown as they are, of four channels of 8 bits the first three. Of
    other images the mean of the channels is shown in grey, the lowest value black and the highest
    white: sixteen bits of a sensor mostly fill a small part of their range.

    Example:
        >>> for_people(np.array([[[100, 300]], [[200, 400]]], np.uint16))[0].tolist()
        [[0, 255]]
    """
    channels = len(image)
    if PixelFormat(channels, 8 if image.dtype == np.uint8 else 16).is_shown_as_it_is:
        return np.repeat(image, 3, axis=0) if channels == 1 else image[:3]  # type: ignore[return-value]
    mean = image.mean(axis=0, dtype=np.float64)
    grey = scaled(mean, mean.max(), GREY, mean.min())
    return np.repeat(grey[None], 3, axis=0)
