"""Calibration of P(OOD): `ood_calibration`, `reliability_curve`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from goen.checks import check_number
from goen.functional import calibration
from goen.metrics._inputs import as_booleans, as_unit_interval


@dataclass(frozen=True)
class ReliabilityBin:
    """One bin of a reliability curve: low < predicted <= high.

    Attributes:
        low: lower edge, not in the bin (except 0, which is in the first).
        high: upper edge, in the bin.
        count: samples in it.
        mean_predicted: their mean predicted probability.
        observed: the share of them for which it happened.
    """

    low: float
    high: float
    count: int
    mean_predicted: float
    observed: float


@dataclass(frozen=True)
class OODCalibration:
    """How well a predicted P(OOD) matches what happened, at this sample's share of OOD.

    Attributes:
        ece: sum over bins of (share of samples) x abs(mean predicted - share OOD).
        brier: mean of (probability - is_ood) ** 2: 0 to 1, one class counted (`IDMetrics.brier`
            sums over classes and would be twice this).
        prevalence: share of OOD in the sample. Calibration holds for this share only.
        curve: the bins that hold samples, low to high.
        num_samples: ID and OOD together.
    """

    ece: float
    brier: float
    prevalence: float
    curve: tuple[ReliabilityBin, ...]
    num_samples: int


def reliability_curve(
    predicted: npt.ArrayLike, happened: npt.ArrayLike, *, num_bins: int = 15
) -> tuple[ReliabilityBin, ...]:
    """Predicted against observed, in equally wide bins; empty bins are left out.

    For a classifier's reliability diagram pass its top probability and whether it was right.

    Args:
        predicted: probabilities in [0, 1] ``(N,)``.
        happened: True or False (1 or 0) ``(N,)``.
        num_bins: bins on [0, 1].

    Example:
        >>> reliability_curve([0.25, 0.75, 1.0], [False, False, True], num_bins=2)[1]
        ReliabilityBin(low=0.5, high=1.0, count=2, mean_predicted=0.875, observed=0.5)
    """
    check_number("num_bins", num_bins, whole=True, at_least=1)
    p = as_unit_interval(predicted, "predicted")
    edges = calibration.equal_width_edges(num_bins)
    sums = calibration.bin_sums(p, as_booleans(happened, "happened", p.size), edges)
    return tuple(
        ReliabilityBin(
            float(low), float(high), int(count), float(predicted / count), float(observed / count)
        )
        for low, high, count, predicted, observed in zip(edges[:-1], edges[1:], *sums, strict=True)
        if count
    )


def ood_calibration(
    probability: npt.ArrayLike, is_ood: npt.ArrayLike, *, num_bins: int = 15
) -> OODCalibration:
    """ECE, Brier score and reliability curve of a predicted P(OOD).

    Args:
        probability: predicted probability of being OOD, in [0, 1] ``(N,)``.
        is_ood: True or False (1 or 0) ``(N,)``.
        num_bins: equally wide bins on [0, 1]; an edge belongs to the bin below it.

    Raises:
        UsageError: a probability outside [0, 1], NaN, no samples, or lengths that differ.

    Example:
        >>> c = ood_calibration([0.25, 0.25, 0.75, 0.75], [False, False, True, False])
        >>> c.ece, c.brier, len(c.curve)  # (2 x 0.25 + 2 x 0.25) / 4
        (0.25, 0.1875, 2)
    """
    p = as_unit_interval(probability, "probability")
    y = as_booleans(is_ood, "is_ood", p.size)
    curve = reliability_curve(p, y, num_bins=num_bins)
    return OODCalibration(
        ece=calibration.calibration_error(p, y, calibration.equal_width_edges(num_bins)),
        brier=float(((p - y) ** 2).mean()),
        prevalence=float(y.mean()),
        curve=curve,
        num_samples=p.size,
    )
