"""What the metrics accept: every check of user input, in one place."""

from typing import Any

import numpy as np
import numpy.typing as npt

from goen.errors import UsageError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.intp]

ROW_SUM_TOLERANCE = 1e-3  # float32 softmax over thousands of classes stays well inside


def as_array(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{name} must be numbers numpy can read, got {type(values).__name__} ({error}). "
            "For a torch tensor pass tensor.detach().float().cpu().numpy()."
        ) from error
    if array.dtype.kind not in "biuf":
        raise UsageError(f"{name} must be real numbers, got dtype {array.dtype}.")
    return array


def as_floats(values: npt.ArrayLike, name: str, ndim: int = 1) -> Floats:
    """A float64 array of the right rank, neither empty nor with NaN. Infinities pass."""
    array = as_array(values, name)
    if array.ndim != ndim:
        shape = "one number per sample, shape (N,)" if ndim == 1 else "one row per sample, (N, C)"
        raise UsageError(f"{name} must be {shape}, got shape {array.shape}.")
    if array.size == 0:
        raise UsageError(f"{name} is empty: shape {array.shape}. At least one sample is needed.")
    floats = array.astype(np.float64, copy=False)
    if num_nan := int(np.isnan(floats).sum()):
        raise UsageError(
            f"{name} holds {num_nan} NaN of {array.size}: a sample without a score has no rank. "
            "Find where they come from; goen drops nothing silently."
        )
    if array.dtype.kind in "iu" and array.itemsize == 8 and np.abs(floats).max() >= 2**53:
        raise UsageError(
            f"{name} holds integers of 2**53 or more, which float64 cannot distinguish. "
            "Pass their ranks instead."
        )
    return floats


def as_labels(values: npt.ArrayLike | None, num_rows: int, num_classes: int) -> Integers:
    if values is None:
        raise UsageError("labels are missing: pass one class index per row.")
    labels = as_array(values, "labels")
    if labels.ndim != 1 or labels.size != num_rows:
        raise UsageError(
            f"labels must be one class index per row, shape ({num_rows},), got shape "
            f"{labels.shape}. One-hot labels? Pass labels.argmax(axis=1)."
        )
    if labels.dtype.kind not in "iu":
        raise UsageError(f"labels must be integers, got dtype {labels.dtype}.")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise UsageError(
            f"labels must lie in 0..{num_classes - 1} for {num_classes} classes, got "
            f"{labels.min()}..{labels.max()}. OOD samples have no place here: leave them out."
        )
    return labels.astype(np.intp, copy=False)


def as_probabilities(values: npt.ArrayLike) -> Floats:
    """Rows of probabilities ``(N, C)``; nothing is clipped or renormalised."""
    rows = as_floats(values, "probabilities", ndim=2)
    check_num_classes(rows, "probabilities")
    sums = rows.sum(axis=1)
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if rows.min() < 0.0 or not abs(sums[worst] - 1.0) <= ROW_SUM_TOLERANCE:
        raise UsageError(
            "probabilities must be rows of numbers >= 0 that sum to 1, got a smallest entry of "
            f"{rows.min():.6g} and a row (number {worst}) that sums to {sums[worst]:.6g}. "
            "If these are logits, pass them so: id_metrics(logits=..., labels=...)."
        )
    return rows


def as_logits(values: npt.ArrayLike) -> Floats:
    """Rows of logits ``(N, C)``; -inf marks a class that is ruled out."""
    rows = as_floats(values, "logits", ndim=2)
    check_num_classes(rows, "logits")
    if not np.isfinite(rows.max(axis=1)).all():
        raise UsageError(
            "logits must have a finite largest entry in every row, got a row with +inf or with "
            "nothing but -inf. Its softmax is undefined."
        )
    return rows


def check_num_classes(rows: Floats, name: str) -> None:
    if rows.shape[1] < 2:
        raise UsageError(f"{name} must have at least two classes, got shape {rows.shape}.")


def as_unit_interval(values: npt.ArrayLike, name: str) -> Floats:
    floats = as_floats(values, name)
    if floats.min() < 0.0 or floats.max() > 1.0:
        raise UsageError(
            f"{name} must lie in [0, 1], got {floats.min():.6g}..{floats.max():.6g}. "
            "A score is not a probability: calibrate it first."
        )
    return floats


def as_booleans(values: npt.ArrayLike, name: str, size: int) -> Floats:
    """True and False (or 1 and 0) as 1.0 and 0.0."""
    array = as_array(values, name)
    if array.shape != (size,):
        raise UsageError(
            f"{name} must be one yes or no per sample, shape ({size},), got {array.shape}."
        )
    if array.dtype.kind != "b" and not np.isin(array, (0, 1)).all():
        raise UsageError(f"{name} must be True and False (or 1 and 0), got other values.")
    return array.astype(np.float64)
