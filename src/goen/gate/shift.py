"""A gate's decisions where ID images are not those that it was fitted on, in a way you declare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from goen.checks import check_number
from goen.errors import FitError, UsageError, unknown
from goen.functional.conformal import required_held_out
from goen.functional.ranking import Floats
from goen.functional.weighted_conformal import (
    DensityRatio,
    class_weights,
    effective_size,
    weighted_p_values,
)
from goen.gate.prediction import Prediction

if TYPE_CHECKING:
    from goen.gate.base import BaseGate

# Held-out images that must be left in effect, in multiples of what the rate needs at least.
_LEAST_EFFECTIVE = 5
_LEAST_SAMPLE = 50


@dataclass(frozen=True, eq=False)
class DeclaredShift:
    """p-values and decisions under a shift that you declare, by weighted held-out images.

    ``from_sample`` takes ID images of the deployment that you vouch for, ``from_table`` any table
    of properties (camera, hour), ``from_classes`` another mix of classes. The probability that a
    new ID image is flagged is at most the false-alarm rate if the weights are the true ones: ID
    images with the same declared properties (or of the same class) must be the same as before.
    Estimated weights make it approximate. Images that are scored must not be in the sample.

    Attributes:
        scores: of the held-out images, ``(n,)``.
        weights: of them, ``(n,)``.
        false_alarm_rate: of the decisions.
        properties: that are declared, by name; none for a mix of classes.
        ratio: estimates the weight of a new image; ``None`` for a mix of classes, where the largest
            weight of any class stands for it.
        largest: that weight.

    Example:
        >>> scores, labels = np.arange(200.0), np.repeat([0, 1], 100)
        >>> shift = DeclaredShift.from_classes(scores, labels, [0.2, 0.8])
        >>> round(shift.effective_size), round(float(shift.p_values([185.0])[0]), 3)
        (147, 0.127)
    """

    scores: Floats
    weights: Floats
    false_alarm_rate: float
    properties: tuple[str, ...] = ()
    ratio: DensityRatio | None = None
    largest: float = 0.0

    def __repr__(self) -> str:
        named = ", ".join(self.properties) or "declared numbers"
        what = "another mix of classes" if self.ratio is None else named
        return (
            f"DeclaredShift({what}: {len(self.scores):,} held-out images count as "
            f"{self.effective_size:.0f}, false_alarm_rate={self.false_alarm_rate:g})"
        )

    def __post_init__(self) -> None:
        check_number("false_alarm_rate", self.false_alarm_rate, above=0, below=1)
        _require(self.effective_size, len(self.scores), self.false_alarm_rate)

    @classmethod
    def from_sample(
        cls, gate: BaseGate, sample: Prediction, on: Sequence[str] = ("brightness",)
    ) -> DeclaredShift:
        """The shift from a gate's held-out images to a sample, in properties of the images.

        Args:
            gate: with the properties of its held-out images.
            sample: what ``gate.predict`` returned for images of the deployment that are ID.
            on: the properties that have shifted: of ``gate.property_names``.

        Raises:
            UsageError: the gate keeps no properties, has groups or a threshold per class, or the
                sample has too few images.
            FitError: too few held-out images are left in effect.
        """
        kept, names = gate.held_out.properties, gate.property_names
        if kept is None:
            raise UsageError(
                "This gate has not kept the properties of its held-out images: fit it again, give "
                "new held-out images (gate.update), or use DeclaredShift.from_table."
            )
        if gate.per_class or gate.held_out.groups is not None:
            raise UsageError(
                "A declared shift weighs held-out images one by one, for one threshold: fit a gate "
                "without groups, and use it without a threshold per class."
            )
        given = (on,) if isinstance(on, str) else on
        declared = tuple(name.removeprefix("image ") for name in given)  # as a monitor calls them
        if not declared:
            raise UsageError(f"Name what has shifted, one of {', '.join(names)}, or several.")
        for name in declared:
            if name not in names:
                raise unknown("property", name, names)
        columns = [names.index(name) for name in declared]
        found = cls.from_table(
            gate.held_out.scores,
            kept[:, columns],
            _properties(sample, declared),
            gate.false_alarm_rate,
        )
        return replace(found, properties=declared)

    @classmethod
    def from_table(
        cls,
        held_out_scores: ArrayLike,
        held_out: ArrayLike,
        sample: ArrayLike,
        false_alarm_rate: float = 0.05,
    ) -> DeclaredShift:
        """The shift in any properties, as numbers; a camera is a column of 0 and 1 for each.

        Args:
            held_out_scores: ``(n,)``.
            held_out: properties of the held-out images, ``(n, P)`` or ``(n,)``.
            sample: properties of ID images of the deployment, ``(m, P)`` or ``(m,)``.
            false_alarm_rate: of the decisions.

        Raises:
            UsageError: tables of other shapes, or fewer than 50 images in the sample.
            FitError: too few held-out images are left in effect.
        """
        scores, known, new = _scores(held_out_scores), _table(held_out), _table(sample)
        if scores.shape != (len(known),) or known.shape[1:] != new.shape[1:]:
            raise UsageError(
                "Expected scores (n,), properties (n, P) of the same images and (m, P) of the "
                f"sample, got {scores.shape}, {known.shape} and {new.shape}."
            )
        if len(new) < _LEAST_SAMPLE:
            raise UsageError(
                f"A sample of the deployment has at least {_LEAST_SAMPLE} images, got {len(new)}."
            )
        _require(len(scores), len(scores), false_alarm_rate)  # no weights make them more
        ratio = DensityRatio.fit(known, new)
        return cls(scores, ratio.held_out, false_alarm_rate, ratio=ratio)

    @classmethod
    def from_classes(
        cls,
        held_out_scores: ArrayLike,
        labels: ArrayLike,
        shares: Mapping[int, float] | Sequence[float],
        false_alarm_rate: float = 0.05,
    ) -> DeclaredShift:
        """Another mix of classes, whose images are as before within each class.

        Args:
            held_out_scores: ``(n,)``.
            labels: true ones of the same images, ``(n,)`` class numbers.
            shares: of the classes among new ID images.
            false_alarm_rate: of the decisions.

        Raises:
            UsageError: shares that do not sum to 1, or a class without held-out images.
            FitError: too few held-out images are left in effect.
        """
        scores, truth = _scores(held_out_scores), np.asarray(labels, np.int64)
        mix = dict(shares) if isinstance(shares, Mapping) else dict(enumerate(shares))
        if scores.shape != truth.shape or not mix or min(*mix, *truth) < 0:
            raise UsageError("Expected scores (n,), labels (n,) and a share for each class number.")
        declared = np.zeros(max(*mix, *truth) + 1)
        declared[[*mix]] = [*mix.values()]
        if (declared < 0).any() or not math.isclose(declared.sum(), 1, abs_tol=1e-6):
            raise UsageError(f"Shares of classes sum to 1, got {declared.sum():g}.")
        missing = np.setdiff1d(np.flatnonzero(declared), truth)
        if len(missing):
            raise UsageError(f"Class {missing[0]} has a share and no held-out image.")
        by_class = class_weights(truth, declared)
        return cls(scores, by_class[truth], false_alarm_rate, largest=float(by_class.max()))

    @property
    def effective_size(self) -> float:
        """How many equally weighted held-out images say as much as these with their weights."""
        return effective_size(self.weights)

    def p_values(self, scores: ArrayLike, properties: ArrayLike | None = None) -> Floats:
        """Of new images ``(N,)``.

        Args:
            scores: ``(N,)``, of the same detector as the held-out ones.
            properties: ``(N, P)``, the declared ones; none for a mix of classes.

        Raises:
            UsageError: no properties where they are declared, or other ones.
        """
        given = np.asarray(scores, np.float64)
        weights = np.full(given.shape, self.largest)
        if self.ratio is not None:
            table = _table(() if properties is None else properties)
            if table.shape != (len(given), len(self.ratio.centre)):
                raise UsageError(
                    f"Expected properties ({len(given)}, {len(self.ratio.centre)}) of these "
                    f"images, got {table.shape}."
                )
            weights = self.ratio.weights(table)
        return weighted_p_values(given, weights, self.scores, self.weights)

    def apply(self, prediction: Prediction) -> Prediction:
        """The gate's prediction with p-values and decisions under the shift.

        P-values of single cues and the probability stay those without it. The p-values of several
        images share their weights, so false-discovery control refuses them; and an error rate does
        not hold under the shift, so no image is said to be accepted.
        """
        if self.ratio is not None and not self.properties:
            raise UsageError("This shift was made from a table: use p_values(scores, table).")
        table = _properties(prediction, self.properties) if self.properties else None
        p_value = self.p_values(prediction.score, table)
        # Infinity, of outputs that are not finite, and NaN are flagged whatever their weight.
        is_ood: NDArray[np.bool_] = (p_value <= self.false_alarm_rate) | ~(
            prediction.score < np.inf
        )
        return replace(prediction, p_value=p_value, is_ood=is_ood, accepted=None, weighted=True)


def _require(effective: float, count: int, false_alarm_rate: float) -> None:
    """Raise a FitError if the held-out images count as too few for the rate."""
    needed = _LEAST_EFFECTIVE * required_held_out(false_alarm_rate)
    if effective < needed:
        raise FitError(
            f"Under this shift the {count:,} held-out images count as {effective:.0f}, and a "
            f"false-alarm rate of {false_alarm_rate:g} needs {needed}: hold out images more like "
            "those of the deployment, declare fewer properties, or allow a higher rate."
        )


def _properties(prediction: Prediction, names: Sequence[str]) -> Floats:
    """Those of these names, ``(N, P)``."""
    if not {*names} <= {*prediction.properties}:
        raise UsageError("This prediction has no properties: give what gate.predict returned.")
    return np.stack([prediction.properties[name] for name in names], axis=1)


def _scores(values: ArrayLike) -> Floats:
    """Held-out scores ``(n,)``."""
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not scores.size or np.isnan(scores).any():
        raise UsageError(
            "Held-out scores are numbers (n,) of one image or more, none of them NaN; got shape "
            f"{scores.shape} with {int(np.isnan(scores).sum())} NaN."
        )
    return scores


def _table(values: ArrayLike) -> Floats:
    """Finite numbers ``(N, P)``."""
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or not table.shape[1] or not np.isfinite(table).all():
        raise UsageError(f"Properties are finite numbers (N, P), got shape {table.shape}.")
    return table
