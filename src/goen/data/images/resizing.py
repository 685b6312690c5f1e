"""How images are resized and cropped: Pillow's bilinear filter, each band by itself."""

import numpy as np
from PIL import Image

from goen.data.images.limits import check_resized
from goen.data.images.pixel_format import Pixels

RESIZE_FILTER = "bilinear-antialiased"
"""How images are resized, in manifests; ``read_image`` says what it means."""


def resize_image(image: Pixels, size: tuple[int, int] | None, name: str) -> Pixels:
    """An image ``(C, H, W)`` resized as ``read_image`` does, if a size is given.

    Raises:
        DataCorrupt: it is too narrow for its height.
    """
    if size is None or image.shape[1:] == size:
        return image
    check_resized(image.shape[1], image.shape[2], size, name)
    return resize_bands(image, size)


def resize_bands(image: Pixels, size: tuple[int, int]) -> Pixels:
    """An image ``(C, H, W)`` at this (height, width), each band by itself.

    The filter is that of ``goen.read_image``: width first, then height. 8 bits are rounded after
    each of the two, 16 bits once at the end.

    Example:
        >>> resize_bands(np.array([[[0, 10, 20, 30]]], np.uint8), (1, 2)).tolist()
        [[[7, 23]]]
    """
    if image.shape[1:] == size:
        return image
    return np.stack([_resized(band, size) for band in image])


def _resized(band: Pixels, size: tuple[int, int]) -> Pixels:
    deep = band.dtype == np.uint16
    image = Image.fromarray(band.astype(np.float32) if deep else np.ascontiguousarray(band))
    values = np.asarray(resize_pillow(image, size))
    return values.round().clip(0, 65535).astype(np.uint16) if deep else values


def proportional_size(size: tuple[int, int], shorter_side: int) -> tuple[int, int]:
    """(height, width) in the same proportions, rounded down, with a shorter side of so many pixels.

    Example:
        >>> proportional_size((100, 75), 32)
        (42, 32)
    """
    height, width = size
    longer = int(shorter_side * max(size) / min(size))
    return (longer, shorter_side) if height >= width else (shorter_side, longer)


def crop_middle(image: Pixels, size: tuple[int, int]) -> Pixels:
    """The middle of an image ``(C, H, W)``; half a pixel is rounded to the even number.

    Example:
        >>> crop_middle(np.arange(5, dtype=np.uint8).reshape(1, 1, 5), (1, 2)).tolist()
        [[[2, 3]]]
    """
    top, left = round((image.shape[1] - size[0]) / 2), round((image.shape[2] - size[1]) / 2)
    return image[:, top : top + size[0], left : left + size[1]]


def resize_pillow(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """An image of Pillow's at this (height, width)."""
    # One side at a time: Pillow 13 takes the height first where that is faster, Pillow 12 does not,
    # and what is rounded between the two depends on the order.
    for step in ((size[1], image.height), (size[1], size[0])):
        image = image if image.size == step else image.resize(step, Image.Resampling.BILINEAR)
    return image
