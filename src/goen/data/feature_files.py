"""Features and other arrays in files: NPY, NPZ, safetensors or Parquet; never code."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from goen.batch import LABEL_NAMES
from goen.errors import DataCorrupt, DataError, ExtraMissing, UsageError
from goen.io.arrays import read_arrays
from goen.io.files import check_free, whole_file
from goen.io.limits import most_unpacked
from goen.io.storage_errors import read_errors
from goen.outputs import LinearClassifier, Outputs

SUFFIXES = (".npy", ".npz", ".safetensors", ".parquet")
WRITTEN = (".npz", ".safetensors")
"""The kinds of file that ``write_features`` writes."""
_LOGITS = "logits"
_WEIGHT, _BIAS, _READS = "classifier.weight", "classifier.bias", "classifier.feature"
_CLASSES = "classes"
# In the metadata of safetensors, which keep no order: the names of the features in theirs.
_ORDER = "features"
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
        classifier: what makes the logits of one of the features, if it is there.
        classes: their names in the order of the logits; empty if the file names none.
    """

    arrays: Mapping[str, NDArray[Any]]
    labels: NDArray[Any] | None
    classifier: LinearClassifier | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def inputs(self, rows: slice = slice(None)) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Rows as a model takes them: arrays by name, or the only one that has no name."""
        parts = {name: array[rows] for name, array in self.arrays.items()}
        return parts[FEATURES] if [*parts] == [FEATURES] else parts

    def outputs(self) -> Outputs:
        """The rows as ``Outputs``, with the labels if these are numbers.

        They share the memory of the arrays; those of a mapped file are read when they are needed.

        Raises:
            UsageError: there are no logits.
        """
        if _LOGITS not in self.arrays:
            raise UsageError(f"Outputs have logits; the file has {', '.join(self.arrays)}.")
        parts = {name: torch.as_tensor(array) for name, array in self.arrays.items()}
        numbered = self.labels is not None and self.labels.dtype.kind in "iu"
        labels = torch.tensor(self.labels, dtype=torch.int64) if numbered else None
        return Outputs(parts.pop(_LOGITS), parts, classifier=self.classifier, labels=labels)


def write_features(
    file: Path, outputs: Outputs, classes: Sequence[str] = (), *, overwrite: bool = False
) -> None:
    """Write features, logits, labels and classifier to a file that ``read_features`` reads.

    The uncertainty of the outputs is not written. In a ``.npz`` file the classifier is the arrays
    ``classifier.weight``, ``classifier.bias`` and ``classifier.feature``, the name of the feature
    that it reads, and the class names are ``classes``; in a ``.safetensors`` file, which holds no
    texts, the name and the classes (a JSON list) are metadata.

    Args:
        file: to write, whole or not at all.
        outputs: of N images.
        classes: their names, in the order of the logits.
        overwrite: whether a file that is there is replaced.

    Raises:
        UsageError: another kind of file, a feature with the name of something else, or the file is
            there.
    """
    check_written(file, overwrite=overwrite)
    reserved = {_LOGITS, *LABEL_NAMES, _WEIGHT, _BIAS, _READS, _CLASSES} & {*outputs.features}
    if reserved:
        raise UsageError(f"In a file of features {', '.join(sorted(reserved))} is no feature.")
    tensors = {**outputs.features, _LOGITS: outputs.logits}
    texts: dict[str, str | list[str]] = {_CLASSES: [*classes]} if classes else {}
    if outputs.labels is not None:
        tensors[LABEL_NAMES[0]] = outputs.labels
    if outputs.classifier is not None:
        tensors |= {_WEIGHT: outputs.classifier.weight, _BIAS: outputs.classifier.bias}
        texts[_READS] = outputs.classifier.feature
    with whole_file(file, overwrite=overwrite) as temporary:
        if file.suffix == ".npz":
            arrays = {name: _as_numpy(values.cpu()) for name, values in tensors.items()}
            with temporary.open("wb") as written:
                arrays |= {name: np.array(text) for name, text in texts.items()}
                np.savez(written, **arrays)  # type: ignore[arg-type]
        else:
            texts[_ORDER] = [*outputs.features]
            metadata = {
                name: t if isinstance(t, str) else json.dumps(t) for name, t in texts.items()
            }
            save_file({name: t.contiguous() for name, t in tensors.items()}, temporary, metadata)


def check_written(file: Path, *, overwrite: bool = False) -> None:
    """Raise a ``UsageError`` if ``write_features`` would not write this file."""
    if file.suffix not in WRITTEN:
        raise UsageError(f"Features are written to {' or '.join(WRITTEN)} files, got {file}.")
    check_free(file, overwrite=overwrite)


def read_features(file: Path) -> FeatureFile:
    """The features and labels in a file, or in the files of a folder, by their names in order.

    A ``.npy`` file holds one array; ``.npz`` and ``.safetensors`` files hold arrays by name; a
    ``.parquet`` file holds features as columns of lists, each of one length. ``labels`` or
    ``label`` are the labels: whole numbers or, but for safetensors, names. A linear classifier and
    class names may be beside them; see ``write_features``. Without a name, the classifier reads the
    last feature.

    Raises:
        UsageError: another kind of file.
        DataError: no such file.
        DataCorrupt: a file that cannot be read, or holds no features.
        ExtraMissing: Parquet without pyarrow.
    """
    if file.is_dir():
        return _joined(file)
    found = read_tensor_file(file)
    for name, array in found.arrays.items():
        if array.ndim != 2 or array.dtype.kind != "f" or not array.shape[1]:
            raise DataCorrupt(
                f"{file}: {name} should be an array (N, D) of floats, got {array.shape} of "
                f"{array.dtype}."
            )
    return found


def _joined(folder: Path) -> FeatureFile:
    """The rows of all files of a folder, one after the other."""
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
    parts = [read_features(file) for file in files]
    if not parts:
        raise DataError(f"{folder} holds no files of features ({', '.join(SUFFIXES)}).")
    first = parts[0]
    for file, part in zip(files, parts, strict=True):
        if _form(part) != _form(first):
            raise DataCorrupt(
                f"{file} and {files[0]} differ in the names or widths of their features, in their "
                "classes or classifier, or in whether they have labels: extract both in one way."
            )
    labels = [part.labels for part in parts if part.labels is not None]
    return FeatureFile(
        {name: np.concatenate([part.arrays[name] for part in parts]) for name in first.arrays},
        np.concatenate(labels) if labels else None,
        first.classifier,
        first.classes,
    )


def _form(part: FeatureFile) -> tuple[object, ...]:
    """What the files of one folder have in common."""
    widths = {name: array.shape[1:] for name, array in part.arrays.items()}
    kind = None if part.labels is None else part.labels.dtype.kind
    found = part.classifier
    numbers = found and [values.numpy().tobytes() for values in (found.weight, found.bias)]
    return widths, kind, part.classes, found and found.feature, numbers


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
    with read_errors(str(file), "cannot be read"):
        arrays = _read(file)
        labels = next((arrays.pop(name) for name in LABEL_NAMES if name in arrays), None)
        if labels is not None and labels.dtype.kind == "S":
            labels = np.char.decode(labels, "utf-8")
        named = _CLASSES in arrays and arrays[_CLASSES].dtype.kind == "U"
        classes = tuple(map(str, arrays.pop(_CLASSES))) if named else ()
        classifier = _classifier(arrays)
    _check(file, arrays, labels)
    return FeatureFile(arrays, labels, classifier, classes)


def _classifier(arrays: dict[str, NDArray[Any]]) -> LinearClassifier | None:
    """The classifier among the arrays, which is taken out of them."""
    weight, bias, reads = (arrays.pop(name, None) for name in (_WEIGHT, _BIAS, _READS))
    if weight is None:
        return None
    features = [name for name in arrays if name != _LOGITS]
    feature = str(reads) if reads is not None else ["", *features][-1]
    if feature not in features or _LOGITS not in arrays:
        raise ValueError(f"{_WEIGHT} is of feature {feature!r} and {_LOGITS}; got {[*arrays]}")
    expected = arrays[_LOGITS].shape[1:] + arrays[feature].shape[1:]
    bias = np.zeros(len(weight), weight.dtype) if bias is None else bias
    kinds = (weight.dtype.kind, bias.dtype.kind)
    if weight.shape != expected or bias.shape != expected[:1] or kinds != ("f", "f"):
        raise ValueError(
            f"{_WEIGHT} should be floats {expected} and {_BIAS} {expected[:1]}, got "
            f"{weight.shape} of {weight.dtype} and {bias.shape} of {bias.dtype}"
        )
    return LinearClassifier(_full(weight), _full(bias), feature)


def _full(values: NDArray[Any]) -> Tensor:
    return torch.tensor(values.astype(np.promote_types(values.dtype, np.float32)))


def _read(file: Path) -> dict[str, NDArray[Any]]:
    if file.suffix == ".npy":
        # Mapped, so that rows are read when they are needed; what is written stays in memory.
        found = np.load(file, mmap_mode="c", allow_pickle=False)
        if not isinstance(found, np.ndarray):  # NumPy goes by the content, not by the name
            raise ValueError("it is an archive of arrays; name it .npz")
        return {FEATURES: found}
    if file.suffix == ".npz":
        return read_arrays(file)
    return _read_safetensors(file) if file.suffix == ".safetensors" else _read_parquet(file)


def _read_safetensors(file: Path) -> dict[str, NDArray[Any]]:
    with safe_open(file, "pt") as content:
        metadata, names = content.metadata() or {}, sorted(content.keys())  # it keeps no order
        order = [name for name in json.loads(metadata.get(_ORDER, "[]")) if name in names]
        ordered = dict.fromkeys([*order, *names])
        arrays = {name: _as_numpy(content.get_tensor(name)) for name in ordered}
    if _CLASSES in metadata:
        arrays[_CLASSES] = np.array(json.loads(metadata[_CLASSES]), dtype=str)
    if _READS in metadata:
        arrays[_READS] = np.array(metadata[_READS])
    return arrays


def _as_numpy(values: Tensor) -> NDArray[Any]:
    """The values; NumPy has no bfloat16 and nothing smaller."""
    short = values.is_floating_point() and values.dtype not in _NUMPY_FLOATS
    return (values.float() if short else values).numpy()


def _read_parquet(file: Path) -> dict[str, NDArray[Any]]:
    try:
        import pyarrow.parquet as pq
        from pyarrow.types import is_fixed_size_list, is_large_list, is_list
    except ImportError as error:
        raise ExtraMissing("Parquet needs pyarrow: pip install 'goen[parquet]'.") from error
    arrays: dict[str, NDArray[Any]] = {}
    found = pq.read_metadata(file)
    groups = (found.row_group(number) for number in range(found.num_row_groups))
    values = sum(group.column(n).num_values for group in groups for n in range(found.num_columns))
    _check_unpacked(file, 8 * values)
    table = pq.read_table(file, read_dictionary=LABEL_NAMES)  # each name is held once
    for name in table.column_names:
        column = table[name].combine_chunks()
        if any(of(column.type) for of in (is_list, is_large_list, is_fixed_size_list)):
            rows = column.to_numpy(zero_copy_only=False)
            arrays[name] = np.stack(rows) if len(rows) else np.zeros((0, 0))
        elif name in LABEL_NAMES:
            names = column.unique().to_pylist()
            _check_unpacked(file, 4 * len(column) * max((len(str(n)) for n in names), default=0))
            arrays[name] = np.asarray(column.to_pylist())
    return arrays


def _check_unpacked(file: Path, num_bytes: int) -> None:
    """Raise a ``ValueError`` if arrays of so many bytes are more than the file explains."""
    if num_bytes > most_unpacked(file):
        size = file.stat().st_size
        raise ValueError(f"arrays of {num_bytes:,} bytes are too large for a file of {size:,}")


def _check(file: Path, arrays: Mapping[str, NDArray[Any]], labels: NDArray[Any] | None) -> None:
    """Raise a ``DataCorrupt`` unless there are numbers, as many rows of each as labels."""
    if not arrays:
        raise DataCorrupt(f"{file} holds no features: arrays (N, D), or columns of lists.")
    counts = {} if labels is None else {"labels": labels.size}
    for name, array in arrays.items():
        if not array.ndim or array.dtype.kind not in "fiub":
            raise DataCorrupt(
                f"{file}: {name} should be an array (N, ...) of numbers, got {array.shape} of "
                f"{array.dtype}."
            )
        counts[name] = len(array)
    if labels is not None and (labels.ndim != 1 or labels.dtype.kind not in "iuU"):
        raise DataCorrupt(f"{file}: labels are whole numbers or names, got {labels.dtype}.")
    if len({*counts.values()}) > 1 or not min(counts.values()):
        raise DataCorrupt(f"{file}: as many rows of each, one or more; got {counts}.")
