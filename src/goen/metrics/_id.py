"""How good the classifier is on in-distribution data: `id_metrics`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from goen.checks import check_number
from goen.errors import UsageError
from goen.functional import calibration
from goen.metrics._inputs import Floats, Integers, as_labels, as_logits, as_probabilities


@dataclass(frozen=True)
class IDMetrics:
    """Accuracy and calibration of a classifier on in-distribution data.

    Attributes:
        accuracy: share of rows whose most probable class is the label; the first of equals.
        ece: expected calibration error of the top probability, equally wide bins.
        adaptive_ece: the same with equally filled bins.
        nll: mean of -log p(label), in nats; infinite when a label was given probability 0.
        brier: mean squared distance to the one-hot label, summed over classes: 0 to 2.
        num_samples: rows.
        num_bins: bins of both calibration errors.
        num_zero_probability: rows whose label was given probability 0 (why ``nll`` is infinite).
    """

    accuracy: float
    ece: float
    adaptive_ece: float
    nll: float
    brier: float
    num_samples: int
    num_bins: int
    num_zero_probability: int


def id_metrics(
    probabilities: npt.ArrayLike | None = None,
    labels: npt.ArrayLike | None = None,
    *,
    logits: npt.ArrayLike | None = None,
    num_bins: int = 15,
) -> IDMetrics:
    """Accuracy, ECE, adaptive ECE, NLL and Brier score of a classifier.

    Give probabilities or logits, by name; goen never guesses which they are. From logits the NLL
    is computed in log space and stays finite; from probabilities, a label given exactly 0 (a
    float32 softmax does that) makes it infinite, and ``num_zero_probability`` counts how often.
    Nothing is clipped.

    ECE as in the paper: 15 bins of equal width on [0, 1]; the paper leaves open where an edge
    belongs, so as in Guo et al. (2017) bin b holds (b - 1) / 15 < confidence <= b / 15.
    Adaptive ECE: bin b ends at the ceil(b N / 15)-th smallest confidence; equal confidences
    share a bin.

    Args:
        probabilities: rows that sum to 1 (to 1e-3) ``(N, C)``.
        labels: class indices ``(N,)``.
        logits: instead of probabilities ``(N, C)``; -inf rules a class out.
        num_bins: bins of both calibration errors.

    Raises:
        UsageError: neither or both of probabilities and logits, rows that do not sum to 1, NaN,
            or labels outside 0..C-1.

    Example:
        >>> m = id_metrics([[0.75, 0.25], [0.5, 0.5]], [0, 1])
        >>> m.accuracy, m.brier, m.ece, round(m.nll, 4)  # ece: (0.25 + 0.5) / 2
        (0.5, 0.3125, 0.375, 0.4904)
        >>> id_metrics(logits=[[0.0, -2000.0]], labels=[1]).nll
        2000.0
        >>> id_metrics(probabilities=[[1.0, 0.0]], labels=[1]).nll
        inf
    """
    check_number("num_bins", num_bins, whole=True, at_least=1)
    predicted, rows, log_rows = _classified(probabilities, logits)
    targets = as_labels(labels, *rows.shape)
    correct = (predicted == targets).astype(np.float64)
    confidence = rows.max(axis=1)
    widths = calibration.equal_width_edges(num_bins)
    masses = calibration.equal_mass_edges(confidence, num_bins)
    of_label = log_rows[np.arange(targets.size), targets]
    return IDMetrics(
        accuracy=float(correct.mean()),
        ece=calibration.calibration_error(confidence, correct, widths),
        adaptive_ece=calibration.calibration_error(confidence, correct, masses),
        nll=-float(of_label.mean()),
        brier=calibration.brier(rows, targets),
        num_samples=targets.size,
        num_bins=num_bins,
        num_zero_probability=int(np.isneginf(of_label).sum()),
    )


def _classified(
    probabilities: npt.ArrayLike | None, logits: npt.ArrayLike | None
) -> tuple[Integers, Floats, Floats]:
    """The predicted classes ``(N,)``, the probabilities ``(N, C)`` and their logarithms."""
    if logits is not None and probabilities is None:
        raw = as_logits(logits)
        log_rows = special.log_softmax(raw, axis=1)
        # Of the logits: softmax can round two different classes to the same value.
        return np.argmax(raw, axis=1), np.exp(log_rows), log_rows
    if probabilities is not None and logits is None:
        rows = as_probabilities(probabilities)
        with np.errstate(divide="ignore"):
            return np.argmax(rows, axis=1), rows, np.log(rows)
    raise UsageError(
        "id_metrics needs either probabilities or logits, got "
        f"{'neither' if logits is None else 'both'}: "
        "id_metrics(probabilities, labels) or id_metrics(logits=..., labels=...)."
    )
