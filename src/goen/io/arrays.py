"""Arrays in NPY and NPZ files: the header is checked before a value is read, and no code is run."""

import math
import stat
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from goen.io.limits import most_unpacked

ARRAY_SUFFIXES = frozenset({".npy", ".npz"})
_READ_AT_ONCE = 1 << 20


def is_array_file(file: Path) -> bool:
    """Whether a file is named as an array."""
    return file.suffix.lower() in ARRAY_SUFFIXES


@dataclass(frozen=True)
class StoredArray:
    """An array in a file that is open; none of its values is read yet.

    Attributes:
        shape: of the array.
        dtype: of the values, as they are stored.
        is_fortran: whether the first axis varies fastest.
        stream: the values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    stream: IO[bytes]

    @property
    def num_bytes(self) -> int:
        """Of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, rows: int | None = None) -> NDArray[Any]:
        """The next rows, in C order only, or the whole array; in this machine's byte order.

        Raises:
            ValueError: the file ends early.
        """
        shape = self.shape if rows is None else (rows, *self.shape[1:])
        values = np.empty(math.prod(shape), self.dtype)
        for start in range(0, values.nbytes, _READ_AT_ONCE):
            part = values.view(np.uint8)[start : start + _READ_AT_ONCE]
            content = self.stream.read(len(part))
            if len(content) != len(part):
                raise ValueError("it ends early")
            part[:] = np.frombuffer(content, np.uint8)
        ordered = values.reshape(shape, order="F" if self.is_fortran else "C")
        return ordered.astype(self.dtype.newbyteorder("="), copy=False)


def array_names(file: Path) -> list[str]:
    """The names of the arrays in an NPZ file."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]


@contextmanager
def open_array(file: Path, name: str | None = None) -> Iterator[StoredArray]:
    """An array of an NPZ file, or the one in an NPY file.

    Raises:
        ValueError: Python objects, an unknown version, or a file that is shorter than it claims;
            NumPy and zipfile raise a dozen other errors of a broken file: see ``read_errors``.
    """
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError("it is not a file")  # to open a pipe would wait for ever
    if name is None:
        with file.open("rb") as stream:
            yield _parsed(stream, file.stat().st_size)
        return
    with zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as stream:
        yield _parsed(stream, archive.getinfo(f"{name}.npy").file_size)


def _parsed(stream: IO[bytes], size: int) -> StoredArray:
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"its version {version} of the NPY format is not known here")
    shape, is_fortran, dtype = readers[version](stream)
    if dtype.hasobject or dtype.names is not None or min(shape, default=1) < 0:
        raise ValueError(f"it holds {dtype} of shape {shape}; Python objects are not read")
    array = StoredArray(shape, dtype, is_fortran, stream)
    if array.num_bytes > size - stream.tell():  # it would be given the memory that it claims
        raise ValueError("it ends early")
    return array


def read_arrays(
    file: Path, names: Collection[str] | None = None, most: int | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file by name: those of ``names`` that are there, or all.

    Raises:
        ValueError: as ``open_array``, or more than ``most`` bytes together; without it, more than
            the size of the file explains.
    """
    found = {}
    most = most_unpacked(file) if most is None else most
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename or (names is not None and name not in names):
                continue
            with archive.open(member) as stream:
                array = _parsed(stream, member.file_size)
                most -= array.num_bytes
                if most < 0:
                    raise ValueError(
                        f"{name} is {array.dtype} of shape {array.shape}: too large for a file of "
                        f"{file.stat().st_size:,} bytes"
                    )
                found[name] = array.read()
    return found
