"""Images in NPY and NPZ files: one per file, or a stack of them.

The header of an array is checked before anything of it is read, and a stack is read a few images
at a time, also from a compressed archive: memory stays flat whatever a file claims.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goen.batch import LABEL_NAMES
from goen.data.images.pixel_format import Bits, PixelFormat, Pixels, to_depth
from goen.errors import DataCorrupt
from goen.functional._rows import PIXEL_SLACK
from goen.io.arrays import StoredArray, array_names, open_array, read_arrays
from goen.io.storage_errors import read_errors

_NAMES = "names"
_IMAGES = "images"
_TYPES = "uint8, uint16, or floats in [0, 1]"
# Of all labels and names together, in bytes.
_MOST_LABELS = 1 << 28
# Of the images of a stack that are read at once, if they are more than one.
_BYTES_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class ArrayHeader:
    """What a file says of its images, before they are read.

    Attributes:
        shape: ``(H, W)``, ``(C, H, W)`` or ``(H, W, C)`` of one image; one axis more of a stack.
        dtype: of the values.
        is_stack: whether there are several images.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_stack: bool

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Of one image, two or three axes."""
        return self.shape[1:] if self.is_stack else self.shape

    def pixel_formats(self) -> list[PixelFormat]:
        """What the images may be: first, the shorter axis at either end is the channels."""
        bits: Bits = 8 if self.dtype == np.uint8 else 16
        shape = self.image_shape
        if len(shape) == 2:
            return [PixelFormat(1, bits)]
        return [PixelFormat(n, bits) for n in sorted({shape[0], shape[2]})]

    def size(self, channels: int, name: str) -> tuple[int, int]:
        """(height, width) of an image with so many channels; a stack of grey may become colour.

        Raises:
            DataCorrupt: it has another number of channels.
        """
        shape = self.image_shape
        if len(shape) == 2 and channels in ((1, 3) if self.is_stack else (1,)):
            return shape[0], shape[1]
        if len(shape) == 3 and shape[0] == channels:
            return shape[1], shape[2]
        if len(shape) == 3 and shape[2] == channels:
            return shape[0], shape[1]
        raise DataCorrupt(
            f"{name} has the shape {shape}; images of {channels} channels are needed: "
            f"({channels}, H, W) or (H, W, {channels})."
        )


def read_array_header(file: Path, name: str, most: int, *, stack: bool = False) -> ArrayHeader:
    """The header of the images in a file.

    Args:
        file: NPY or NPZ; see ``read_array_image``.
        name: for error messages.
        most: values that an image may have.
        stack: whether three axes are a stack of grey images ``(N, H, W)``, too.

    Raises:
        DataCorrupt: a file without images, or with images that are too large.
    """
    with _opened(file, name, most, stack=stack) as (header, _):
        return header


def read_array_image(file: Path, pixel_format: PixelFormat, name: str, most: int) -> Pixels:
    """The image ``(C, H, W)`` in a file, in this pixel format.

    An NPZ file holds one array, or one called ``images``.

    Raises:
        DataCorrupt: a stack, another number of channels, values of another kind or range.
    """
    with _opened(file, name, most) as (header, array):
        if header.is_stack:
            raise DataCorrupt(
                f"{name} holds {header.shape[0]:,} images; one per file was expected here."
            )
        header.size(pixel_format.channels, name)
        return _image(array.read(), pixel_format, name)


def read_stack(
    file: Path, pixel_format: PixelFormat, name: str, most: int, batch_size: int
) -> Iterator[Pixels]:
    """The images of a stack, a few at once: ``(N, C, H, W)``, ``(N, H, W, C)`` or ``(N, H, W)``."""
    with _opened(file, name, most, stack=True) as (header, array):
        if not header.is_stack or array.is_fortran:
            raise DataCorrupt(
                f"{name} should hold a stack of images (N, C, H, W) in C order, got "
                f"{header.shape}{' in Fortran order' * array.is_fortran}. Save "
                "np.ascontiguousarray(images)."
            )
        header.size(pixel_format.channels, name)
        size = math.prod(header.image_shape) * header.dtype.itemsize
        at_once = max(1, min(batch_size, _BYTES_AT_ONCE // size))
        for start in range(0, header.shape[0], at_once):
            values = array.read(min(at_once, header.shape[0] - start))
            yield np.stack([_image(image, pixel_format, name) for image in values])


def read_labels(file: Path, count: int, name: str) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """The labels ``(N,)`` of a stack in an NPZ file, numbers or texts, and ``names`` of classes.

    Raises:
        DataCorrupt: labels of another kind or number.
    """
    if file.suffix.lower() != ".npz":
        return None, ()
    with read_errors(name):
        found = read_arrays(file, (*LABEL_NAMES, _NAMES), _MOST_LABELS)
    labels = next((found[key] for key in LABEL_NAMES if key in found), None)
    if labels is not None and (labels.shape != (count,) or labels.dtype.kind not in "iuU"):
        raise DataCorrupt(
            f"{name}: {count} images need as many labels, whole numbers or texts; got "
            f"{labels.dtype} of shape {labels.shape}."
        )
    return labels, tuple(map(str, found.get(_NAMES, np.empty(0)).ravel()))


def has_labels(file: Path, name: str) -> bool:
    """Whether a file with a stack of images has their labels, too."""
    if file.suffix.lower() != ".npz":
        return False
    with read_errors(name):
        return not {*LABEL_NAMES}.isdisjoint(array_names(file))


def _image(values: NDArray[Any], pixel_format: PixelFormat, name: str) -> Pixels:
    """One image in the file's own shape as ``(C, H, W)`` in this pixel format."""
    if values.dtype.kind == "f":
        low, high = float(values.min()), float(values.max())
        if not (low >= -PIXEL_SLACK and high <= 1 + PIXEL_SLACK):  # NaN as well
            raise DataCorrupt(
                f"{name}: float images lie in [0, 1]; got {low:.3g}..{high:.3g}. Scale them, or "
                "save them as uint8 or uint16."
            )
        values = values.clip(0, 1)
    bands = values
    if values.ndim == 2:
        bands = np.repeat(values[None], pixel_format.channels, axis=0)
    elif bands.shape[0] != pixel_format.channels:
        bands = bands.transpose(2, 0, 1)
    return np.ascontiguousarray(to_depth(bands, pixel_format.bits))


@contextmanager
def _opened(
    file: Path, name: str, most: int, *, stack: bool = False
) -> Iterator[tuple[ArrayHeader, StoredArray]]:
    """The images of a file, and what they are."""
    with read_errors(name), open_array(file, _images_name(file, name)) as array:
        is_stack = len(array.shape) == 4 or (stack and len(array.shape) == 3)
        header = ArrayHeader(array.shape, array.dtype, is_stack)
        _check(header, name, most)
        yield header, array


def _images_name(file: Path, shown: str) -> str | None:
    """The array of images in an NPZ file; ``None`` for an NPY file."""
    if file.suffix.lower() == ".npy":
        return None
    names = array_names(file)
    images = [name for name in names if name not in (*LABEL_NAMES, _NAMES)]
    if _IMAGES not in images and len(images) != 1:
        found = ", ".join(name[:40] for name in names[:5]) or "nothing"
        raise DataCorrupt(
            f"{shown} should hold an array called {_IMAGES}; it holds {found}. A file of features "
            "is for a gate that was fitted to features."
        )
    return _IMAGES if _IMAGES in images else images[0]


def _check(header: ArrayHeader, name: str, most: int) -> None:
    shape, dtype = header.shape, header.dtype
    plain = dtype.kind in "uf" and (dtype.itemsize <= 2 or dtype.kind == "f")
    if not plain or dtype.itemsize > 8:
        raise DataCorrupt(f"{name} should hold {_TYPES}; it holds {dtype}.")
    if len(shape) not in (2, 3, 4) or min(shape) < 1:
        raise DataCorrupt(
            f"{name} should hold an image (H, W), (C, H, W) or (H, W, C), or a stack of them; its "
            f"shape is {shape}."
        )
    values = math.prod(header.image_shape)
    if values > most:
        raise DataCorrupt(f"{name} has an image of {values:,} values; at most {most:,} are read.")
