"""Features and other arrays in files: NPY, NPZ, safetensors or Parquet; never code."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from goen.errors import DataCorrupt, DataError, ExtraMissing, GoenError, UsageError

SUFFIXES = (".npy", ".npz", ".safetensors", ".parquet")
_LABELS = ("labels", "label")
_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
FEATURES = "features"
"""The name of the only feature, where it is given without one."""


@dataclass(frozen=True)
class FeatureFile:
    """What a file of N rows holds.

    Attributes:
        arrays: ``(N, D)`` by name; ``logits`` are a classifier's. Of ``read_tensor_file``, of any
            shape ``(N, ...)``.
        labels: ``(N,)`` class numbers, or names as texts, if there are any.
    """

    arrays: Mapping[str, NDArray[Any]]
    labels: NDArray[Any] | None

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def inputs(self, rows: slice = slice(None)) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Rows as a model takes them: arrays by name, or the only one that has no name."""
        parts = {name: array[rows] for name, array in self.arrays.items()}
        return parts[FEATURES] if [*parts] == [FEATURES] else parts


def read_features(file: Path) -> FeatureFile:
    """The features and labels in a file.

    A ``.npy`` file holds one array; ``.npz`` and ``.safetensors`` files hold arrays by name; a
    ``.parquet`` file holds features as columns of lists, each of one length. ``labels`` or
    ``label`` are the labels: whole numbers or, but for safetensors, names.

    Raises:
        UsageError: another kind of file.
        DataError: no such file.
        DataCorrupt: a file that cannot be read, or holds no features.
        ExtraMissing: Parquet without pyarrow.
    """
    found = read_tensor_file(file)
    for name, array in found.arrays.items():
        if array.ndim != 2 or array.dtype.kind != "f" or not array.shape[1]:
            raise DataCorrupt(
                f"{file}: {name} should be an array (N, D) of floats, got {array.shape} of "
                f"{array.dtype}."
            )
    return found


def read_tensor_file(file: Path) -> FeatureFile:
    """Arrays of any shape ``(N, ...)`` and type, and labels, in a file; see ``read_features``.

    Raises:
        UsageError: another kind of file.
        DataError: no such file.
        DataCorrupt: a file that cannot be read, or holds no arrays of N rows.
        ExtraMissing: Parquet without pyarrow.
    """
    if file.suffix not in SUFFIXES:
        raise UsageError(f"Features and tensors are in {', '.join(SUFFIXES)} files, got {file}.")
    if not file.is_file():
        raise DataError(f"{file} does not exist, or is not a file.")
    try:
        arrays = _read(file)
        labels = next((arrays.pop(name) for name in _LABELS if name in arrays), None)
        if labels is not None and labels.dtype.kind == "S":
            labels = np.char.decode(labels, "utf-8")
    except GoenError:
        raise
    except Exception as error:  # a damaged file makes NumPy and the others raise almost anything
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataCorrupt(f"{file} cannot be read: {reason}") from error
    return FeatureFile(_checked(file, arrays, labels), labels)


def _read(file: Path) -> dict[str, NDArray[Any]]:
    if file.suffix == ".npy":
        # Mapped, so that rows are read when they are needed.
        return {FEATURES: np.load(file, mmap_mode="r", allow_pickle=False)}
    if file.suffix == ".npz":
        # Opened here: NumPy leaves a damaged archive open.
        with file.open("rb") as stream:
            content = np.load(stream, allow_pickle=False)
            if isinstance(content, np.ndarray):
                raise ValueError("one array, not an archive of them")
            found = {name: content[name] for name in content.files}
        # Other files in the archive come as bytes.
        return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}
    if file.suffix == ".safetensors":
        tensors = load_file(file)
        return {name: _as_numpy(tensors[name]) for name in sorted(tensors)}  # it keeps no order
    return _read_parquet(file)


def _as_numpy(values: Tensor) -> NDArray[Any]:
    """The values; NumPy has no bfloat16 and nothing smaller."""
    short = values.is_floating_point() and values.dtype not in _NUMPY_FLOATS
    return (values.float() if short else values).numpy()


def _read_parquet(file: Path) -> dict[str, NDArray[Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExtraMissing("Parquet needs pyarrow: pip install 'goen[parquet]'.") from error
    arrays: dict[str, NDArray[Any]] = {}
    try:
        table = pq.read_table(file)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error
    for name in table.column_names:
        column = table[name].combine_chunks()
        kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if any(is_kind(column.type) for is_kind in kinds):
            rows = column.to_numpy(zero_copy_only=False)
            arrays[name] = np.stack(rows) if len(rows) else np.zeros((0, 0))
        elif name in _LABELS:
            arrays[name] = np.asarray(column.to_pylist())
    return arrays


def _checked(
    file: Path, arrays: Mapping[str, NDArray[Any]], labels: NDArray[Any] | None
) -> dict[str, NDArray[Any]]:
    if not arrays:
        raise DataCorrupt(f"{file} holds no features: arrays (N, D), or columns of lists.")
    counts = {name: len(array) for name, array in arrays.items() if array.ndim}
    for name, array in arrays.items():
        if not array.ndim or array.dtype.kind not in "fiub":
            raise DataCorrupt(
                f"{file}: {name} should be an array (N, ...) of numbers, got {array.shape} of "
                f"{array.dtype}."
            )
    if labels is not None:
        if labels.ndim != 1 or labels.dtype.kind not in "iuUS":
            raise DataCorrupt(f"{file}: labels are whole numbers or names, got {labels.dtype}.")
        counts["labels"] = len(labels)
    if len({*counts.values()}) > 1 or not min(counts.values()):
        raise DataCorrupt(f"{file}: as many rows of each, one or more; got {counts}.")
    return dict(arrays)
