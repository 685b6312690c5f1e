"""Images as data URLs, small enough for a page that holds thousands of them."""

import base64
import io

import numpy as np
from PIL import Image

from goen.data.images.pixel_format import Pixels, for_people

# Up to this side PNG is exact and small; of larger images a JPEG is several times smaller.
_EXACT_SIDE = 64
_JPEG_QUALITY = 80


def image_url(pixels: Pixels, side: int | None = None) -> str:
    """An image ``(C, H, W)`` as a data URL, reduced so that neither side is above ``side``.

    Up to 64×64 pixels it is exact; larger ones are compressed. Images that are neither grey nor
    colour of 8 bits are shown as ``for_people`` has it.

    Example:
        >>> image_url(np.zeros((3, 2, 2), np.uint8)).startswith("data:image/png;base64,iVBOR")
        True
    """
    image = Image.fromarray(np.ascontiguousarray(for_people(pixels).transpose(1, 2, 0)))
    if side is not None:
        image.thumbnail((side, side), Image.Resampling.BILINEAR)
    content = io.BytesIO()
    if max(image.size) <= _EXACT_SIDE:
        image.save(content, "PNG", optimize=True)
        return data_url(content.getvalue(), "png")
    image.save(content, "JPEG", quality=_JPEG_QUALITY)
    return data_url(content.getvalue(), "jpeg")


def data_url(data: bytes, kind: str) -> str:
    """The bytes of an image file of this kind (``png``, ``jpeg``, ``svg+xml``) as a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
