"""Images in NPY and NPZ files: one per file, or a stack of them; never anything that runs code.

The header of an array is checked before anything of it is read, and a stack is read a few images
at a time, also from a compressed archive: memory stays flat whatever a file claims.
"""

import math
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from goen.data.forms import Bits, PixelForm, Pixels, to_depth
from goen.errors import DataCorrupt
from goen.functional._rows import PIXEL_SLACK

ARRAY_SUFFIXES = frozenset({".npy", ".npz"})
_LABELS = ("labels", "label")
_NAMES = "names"
_IMAGES = "images"
_KINDS = "uint8, uint16, or floats in [0, 1]"
# Of all labels or names together, in bytes.
_MOST_LABELS = 1 << 28
# Of the images of a stack that are read at once, if they are more than one.
_BYTES_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class ArrayHeader:
    """What a file says of its images, before they are read.

    Attributes:
        shape: ``(H, W)``, ``(C, H, W)`` or ``(H, W, C)`` of one image; four axes of a stack.
        dtype: of the values.
        is_fortran: whether the first axis varies fastest.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool

    @property
    def is_stack(self) -> bool:
        """Whether there are several images."""
        return len(self.shape) == 4

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Of one image, two or three axes."""
        return self.shape[1:] if self.is_stack else self.shape

    def forms(self) -> list[PixelForm]:
        """What the images may be: first, the shorter axis at either end is the channels."""
        bits: Bits = 8 if self.dtype == np.uint8 else 16
        shape = self.image_shape
        if len(shape) == 2:
            return [PixelForm(1, bits)]
        return [PixelForm(n, bits) for n in sorted({shape[0], shape[2]})]

    def size(self, channels: int, name: str) -> tuple[int, int]:
        """(height, width) of an image with so many channels.

        Raises:
            DataCorrupt: it has another number of channels.
        """
        shape = self.image_shape
        first = (1, *shape) if len(shape) == 2 else shape
        if first[0] == channels:
            return first[1], first[2]
        if first[2] == channels:
            return first[0], first[1]
        raise DataCorrupt(
            f"{name} has the shape {shape}; images of {channels} channels are needed: "
            f"({channels}, H, W) or (H, W, {channels})."
        )


def is_array_file(file: Path) -> bool:
    """Whether a file is named as an array."""
    return file.suffix.lower() in ARRAY_SUFFIXES


def read_array_header(file: Path, name: str, most: int) -> ArrayHeader:
    """The header of the images in a file.

    Args:
        file: NPY or NPZ; see ``read_array_image``.
        name: for error messages.
        most: values that an image may have.

    Raises:
        DataCorrupt: a file without images, or with images that are too large.
    """
    with _opened(file, name, most) as (header, _):
        return header


def read_array_image(file: Path, form: PixelForm, name: str, most: int) -> Pixels:
    """The image ``(C, H, W)`` in a file, in this form.

    An NPZ file holds one array, or one called ``images``.

    Raises:
        DataCorrupt: a stack, another number of channels, values of another kind or range.
    """
    with _opened(file, name, most) as (header, stream):
        if header.is_stack:
            raise DataCorrupt(
                f"{name} holds {header.shape[0]:,} images; one per file was expected here."
            )
        header.size(form.channels, name)
        return _image(_read_values(stream, header, 1)[0], form, name)


def read_stack(
    file: Path, form: PixelForm, name: str, most: int, batch_size: int
) -> Iterator[Pixels]:
    """The images of a stack ``(N, C, H, W)`` or ``(N, H, W, C)``, a few at a time, in this form."""
    with _opened(file, name, most) as (header, stream):
        if not header.is_stack or header.is_fortran:
            raise DataCorrupt(
                f"{name} should hold a stack of images (N, C, H, W) in C order, got "
                f"{header.shape}{' in Fortran order' * header.is_fortran}. Save "
                "np.ascontiguousarray(images)."
            )
        header.size(form.channels, name)
        size = math.prod(header.image_shape) * header.dtype.itemsize
        at_once = max(1, min(batch_size, _BYTES_AT_ONCE // size))
        for start in range(0, header.shape[0], at_once):
            count = min(at_once, header.shape[0] - start)
            values = _read_values(stream, header, count)
            yield np.stack([_image(image, form, name) for image in values])


def read_labels(file: Path, count: int, name: str) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """The labels ``(N,)`` of a stack in an NPZ file, numbers or texts, and ``names`` of classes.

    Raises:
        DataCorrupt: labels of another kind or number.
    """
    if file.suffix.lower() != ".npz":
        return None, ()
    labels, names = _small_array(file, _LABELS, name), _small_array(file, (_NAMES,), name)
    if labels is not None and (labels.shape != (count,) or labels.dtype.kind not in "iuU"):
        raise DataCorrupt(
            f"{name}: {count} images need as many labels, whole numbers or texts; got "
            f"{labels.dtype} of shape {labels.shape}."
        )
    return labels, () if names is None else tuple(map(str, names.ravel()))


def _small_array(file: Path, names: tuple[str, ...], name: str) -> NDArray[Any] | None:
    with _one_error(name), zipfile.ZipFile(file) as archive:
        there = [f"{n}.npy" for n in names if f"{n}.npy" in archive.namelist()]
        if not there:
            return None
        with archive.open(there[0]) as stream:
            shape, _, dtype = _parse(stream)
            size = math.prod(shape) * dtype.itemsize
            if len(shape) != 1 or dtype.kind not in "iuU" or size > _MOST_LABELS:
                raise ValueError(f"{there[0]} is {dtype} of shape {shape}")
            return np.frombuffer(_exactly(stream, size), dtype)


def _image(values: NDArray[Any], form: PixelForm, name: str) -> Pixels:
    """One image in the file's own shape as ``(C, H, W)`` of this form."""
    if values.dtype.kind == "f":
        low, high = float(values.min()), float(values.max())
        if not (low >= -PIXEL_SLACK and high <= 1 + PIXEL_SLACK):  # NaN as well
            raise DataCorrupt(
                f"{name}: float images lie in [0, 1]; got {low:.3g}..{high:.3g}. Scale them, or "
                "save them as uint8 or uint16."
            )
        values = values.clip(0, 1)
    bands = values[None] if values.ndim == 2 else values
    if bands.shape[0] != form.channels:
        bands = bands.transpose(2, 0, 1)
    return np.ascontiguousarray(to_depth(bands, form.bits))


@contextmanager
def _opened(file: Path, name: str, most: int) -> Iterator[tuple[ArrayHeader, IO[bytes]]]:
    """The header of the images, and the stream behind it."""
    with _one_error(name):
        if not stat.S_ISREG(file.stat().st_mode):
            raise DataCorrupt(f"{name} is not a file.")
        with _member(file) as (stream, size):
            header = ArrayHeader(*_reordered(_parse(stream)))
            _check(header, name, most)
            # A file that claims more than it has would be given the memory for it.
            if math.prod(header.shape) * header.dtype.itemsize > size:
                raise ValueError("it ends early")
            yield header, stream


@contextmanager
def _member(file: Path) -> Iterator[tuple[IO[bytes], int]]:
    """The array of images, and how many bytes it has or claims to have."""
    if file.suffix.lower() == ".npy":
        with file.open("rb") as stream:
            yield stream, file.stat().st_size
        return
    with zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        images = [name for name in names if name not in (*_LABELS, _NAMES)]
        chosen = _IMAGES if _IMAGES in images else images[0] if len(images) == 1 else None
        if chosen is None:
            found = ", ".join(name[:40] for name in names[:5]) or "nothing"
            raise ValueError(f"it should hold an array called {_IMAGES}; it holds {found}")
        with archive.open(f"{chosen}.npy") as member:
            yield member, archive.getinfo(f"{chosen}.npy").file_size


def _parse(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"its version {version} of the NPY format is not known here")
    return readers[version](stream)


def _reordered(
    parsed: tuple[tuple[int, ...], bool, np.dtype[Any]],
) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    shape, is_fortran, dtype = parsed
    return shape, dtype, is_fortran


def _check(header: ArrayHeader, name: str, most: int) -> None:
    shape, dtype = header.shape, header.dtype
    plain = dtype.kind in "uf" and (dtype.itemsize <= 2 or dtype.kind == "f")
    if not plain or dtype.itemsize > 8 or dtype.hasobject or dtype.names is not None:
        raise DataCorrupt(f"{name} should hold {_KINDS}; it holds {dtype}.")
    if len(shape) not in (2, 3, 4) or min(shape) < 1:
        raise DataCorrupt(
            f"{name} should hold an image (H, W), (C, H, W) or (H, W, C), or a stack of them; its "
            f"shape is {shape}."
        )
    values = math.prod(header.image_shape)
    if values > most:
        raise DataCorrupt(f"{name} has an image of {values:,} values; at most {most:,} are read.")


def _read_values(stream: IO[bytes], header: ArrayHeader, count: int) -> NDArray[Any]:
    """The next ``count`` images in their own shape, in this machine's byte order."""
    shape = header.image_shape
    content = _exactly(stream, count * math.prod(shape) * header.dtype.itemsize)
    values = np.frombuffer(content, header.dtype)
    if header.is_fortran:  # one image: stacks have the other order
        values = values.reshape(shape, order="F")[None]
    else:
        values = values.reshape(count, *shape)
    return values.astype(header.dtype.newbyteorder("="), copy=False)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    if len(content) != count:
        raise ValueError("it ends early")
    return content


@contextmanager
def _one_error(name: str) -> Iterator[None]:
    """Whatever goes wrong with the file becomes a ``DataCorrupt`` that names it."""
    try:
        yield
    except DataCorrupt:
        raise
    except FileNotFoundError as error:
        raise DataCorrupt(f"{name} does not exist.") from error
    except MemoryError as error:
        raise DataCorrupt(f"{name} needs more memory than there is. Shrink it first.") from error
    except Exception as error:  # NumPy and zipfile let a dozen kinds out of a broken file
        if isinstance(error, OSError) and error.errno is not None:
            raise DataCorrupt(f"{name} cannot be opened: {error.strerror}.") from error
        reason = str(error)[:200]
        raise DataCorrupt(
            f"{name} is broken, cut short, or no array of images: {reason}."
        ) from error
