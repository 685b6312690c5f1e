"""Calibration errors and the Brier score."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.intp]


def equal_width_edges(num_bins: int) -> Floats:
    """Bin edges 0, 1/B, ..., 1 ``(B + 1,)``."""
    return np.arange(num_bins + 1) / num_bins  # not linspace, which rounds otherwise than 5 / 12


def equal_mass_edges(values: Floats, num_bins: int) -> Floats:
    """Edges that put about N / B values in each bin ``(B + 1,)``.

    The upper edge of bin b is the ceil(b N / B)-th smallest value. Edges may repeat when values
    do; equal values always share a bin, so the order of the samples cannot matter.

    >>> equal_mass_edges(np.array([0.9, 0.1, 0.4, 0.2]), 2)
    array([0. , 0.2, 0.9])
    """
    ranks = -(-np.arange(1, num_bins + 1) * values.size // num_bins)
    return np.concatenate([[0.0], np.sort(values)[ranks - 1]])


def bin_sums(predicted: Floats, happened: Floats, edges: Floats) -> tuple[Integers, Floats, Floats]:
    """Per bin: how many, the sum of what was predicted, how many happened; each ``(B,)``.

    Bin b holds edges[b] < predicted <= edges[b + 1]; the first also what lies at or below its
    lower edge, the last also what rounding put above 1.
    """
    bin_of = np.searchsorted(edges[1:-1], predicted, side="left")
    num_bins = edges.size - 1
    counts, predicted_sums, happened_sums = (
        np.bincount(bin_of, weights=weights, minlength=num_bins)
        for weights in (None, predicted, happened)
    )
    return counts, np.asarray(predicted_sums, np.float64), np.asarray(happened_sums, np.float64)


def calibration_error(predicted: Floats, happened: Floats, edges: Floats) -> float:
    """Sum over bins of (share of samples) x |mean predicted - share happened|.

    >>> p, y = np.array([0.9, 0.9, 0.9, 0.9, 0.2]), np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    >>> round(calibration_error(p, y, equal_width_edges(15)), 12)  # (4 x 0.15 + 1 x 0.2) / 5
    0.16
    """
    _, predicted_sums, happened_sums = bin_sums(predicted, happened, edges)
    return float(np.abs(predicted_sums - happened_sums).sum()) / predicted.size


def brier(probabilities: Floats, labels: Integers) -> float:
    """Mean over rows of the squared distance to the one-hot label, summed over classes: 0 to 2.

    >>> round(brier(np.array([[0.7, 0.2, 0.1]]), np.array([0])), 12)
    0.14
    """
    off = probabilities.copy()
    off[np.arange(labels.size), labels] -= 1.0
    return float(np.vecdot(off, off).mean())
