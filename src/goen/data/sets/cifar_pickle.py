"""The official ``cifar-10-batches-py`` files without trusting a pickle.

A pickle is a program. The one in these files calls exactly three names, all of NumPy. This reader
hands it stand-ins that only remember what they were given, so no code of NumPy, and none of
any other package, runs when the file is read; every other name is refused.
"""

import io
import pickle
from typing import Any

import numpy as np

from goen.data.imageset import Labels, Pixels
from goen.data.sets.readers import Batches, Members
from goen.errors import DataCorrupt


class _Array:
    """Stands in for an ndarray: keeps the state that the pickle would have given it."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes_of_shape(self) -> tuple[bytes, tuple[int, ...]]:
        _version, shape, _dtype, fortran, data = self.state
        if fortran or not isinstance(data, bytes):
            raise ValueError("an array that is not plain bytes in row order")
        return data, tuple(shape)


class _Dtype:
    """Stands in for a dtype; only bytes are read."""

    def __init__(self, *args: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...


def _reconstruct(*_args: object) -> _Array:
    return _Array()


_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle._Unpickler):
    # The one written in Python: the one in C sizes an array by a number in the file, so that four
    # damaged bytes can cost gigabytes and minutes.
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def cifar_pickles(files: Members, label_key: bytes = b"labels") -> Batches:
    """The images of official batch files; see ``read_batch``."""
    return [read_batch(data, label_key, name) for name, data in files]


def read_batch(data: bytes, label_key: bytes, name: str) -> tuple[Pixels, Labels]:
    """Images ``(N, 3, 32, 32)`` and labels ``(N,)`` of one official batch file.

    Raises:
        DataCorrupt: the pickle is cut short, asks for a name these files have no use for, or
            does not hold what a batch holds.
    """
    try:
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        raw, shape = batch[b"data"].bytes_of_shape()
        images = np.frombuffer(raw, np.uint8).reshape(shape)
        labels = np.array(batch[label_key], dtype=np.int64)
        if images.shape != (len(labels), 3072):
            raise ValueError(f"images of shape {images.shape} for {len(labels)} labels")
    except Exception as error:
        # Whatever a hostile or broken pickle provokes, it is one thing to the user.
        reason = str(error) or type(error).__name__
        raise DataCorrupt(
            f"{name} is not an official CIFAR batch: {reason}. Nothing of it was run. "
            "Delete it and get the set again."
        ) from error
    return images.reshape(-1, 3, 32, 32), labels
