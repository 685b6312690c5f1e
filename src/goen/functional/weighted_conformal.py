r"""Conformal p-values of images whose distribution has shifted in a declared way.

Held-out images come from P, new ID images from Q, and w(x) is proportional to dQ/dP. Then

    p(x) = (sum of w_i over held-out scores s_i >= s, + w(x)) / (sum of all w_i, + w(x))

has P(p <= alpha) <= alpha for a new ID image, for the true weights and every number of held-out
images. With estimated weights this is so approximately. Where all weights are equal it is the
ordinary p-value.

Weights must not depend on what the score depends on, or OOD images weigh themselves out of being
flagged: here they are functions of declared properties, or of the class mix.

Paper: Tibshirani, Barber, Candès & Ramdas 2019, "Conformal prediction under covariate shift";
Podkopaev & Ramdas 2021, "Distribution-free uncertainty quantification for classification under
label shift"; Jin & Candès 2023 for p-values. Departs from them: estimated weights are cut off at 20
times the ratio's mean of 1, and of the class mix the largest weight of any class stands for that
of the new image, whose class is not known.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from goen.functional.ranking import Floats

_FOLDS = 5
# Estimated weights are cut off here: one image far out would else be all that counts, and a new one
# that no sample is like would weigh itself out of being flagged. The mean of dQ/dP over P is 1.
_LARGEST = 20.0


def weighted_p_values(
    scores: Floats, weights: Floats, held_out_scores: Floats, held_out_weights: Floats
) -> Floats:
    """The p-value of each score, ``(N,)``.

    Args:
        scores: ``(N,)``.
        weights: ``(N,)``, not negative.
        held_out_scores: ``(n,)``.
        held_out_weights: ``(n,)``, not negative; on the scale of the others.

    Example:
        >>> held_out = np.array([1.0, 2.0, 3.0])
        >>> weighted_p_values(np.array([2.5]), np.array([1.0]), held_out, np.ones(3)).tolist()
        [0.5]
        >>> weights = np.array([1.0, 1.0, 4.0])
        >>> weighted_p_values(np.array([2.5]), np.array([2.0]), held_out, weights).tolist()
        [0.75]
    """
    order = np.argsort(held_out_scores, kind="stable")
    # From the highest score down, so that no p-value is a difference of large sums.
    above = np.concatenate([np.cumsum(held_out_weights[order][::-1])[::-1], [0.0]])
    first = held_out_scores[order].searchsorted(scores, side="left")
    return np.asarray((above[first] + weights) / (above[0] + weights))


def effective_size(weights: Floats) -> float:
    """How many equally weighted images say as much: the squared sum by the sum of squares.

    Example:
        >>> effective_size(np.array([1.0, 1.0, 0.0, 0.0]))
        2.0
    """
    return float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0


def class_weights(labels: NDArray[np.int64], shares: Floats) -> Floats:
    """The weight of each class, ``(C,)``: its declared share by that among the held-out labels.

    Args:
        labels: true ones of the held-out images, ``(n,)``.
        shares: declared, ``(C,)``; a class without held-out images has the share 0.
    """
    known = np.bincount(labels, minlength=len(shares)) / len(labels)
    return np.divide(shares, known, out=np.zeros(len(shares)), where=known > 0)


@dataclass(frozen=True, eq=False)
class DensityRatio:
    """An estimate of dQ/dP as a function of a few properties: logistic regression, cross-fitted.

    The log of the ratio is a quadratic function of each property. A held-out image has its weight
    from the fit to the other four fifths, a new image the mean of all five.

    Attributes:
        held_out: the weights of the held-out images, ``(n,)``.
        centre: of the properties, ``(P,)``.
        scale: of the properties, ``(P,)``.
        slopes: of each fit, ``(5, 2 P)``.
        intercepts: of each fit, ``(5,)``.
    """

    held_out: Floats
    centre: Floats
    scale: Floats
    slopes: Floats
    intercepts: Floats

    @classmethod
    def fit(cls, held_out: Floats, sample: Floats, seed: int = 0) -> "DensityRatio":
        """From the properties of held-out images ``(n, P)`` and of a deployment sample ``(m, P)``.

        Args:
            held_out: drawn from P.
            sample: drawn from Q: ID images of the deployment, none of which is scored.
            seed: of the folds.
        """
        centre, scale = held_out.mean(axis=0), held_out.std(axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        rows = np.concatenate([held_out, sample])
        columns = _quadratic((rows - centre) / scale)
        is_sample = np.arange(len(rows)) >= len(held_out)
        folds = np.empty(len(rows), dtype=np.int64)
        rng = np.random.default_rng(seed)
        for part in (is_sample, ~is_sample):
            folds[part] = rng.permutation(int(part.sum())) % _FOLDS
        slopes, intercepts = [], []
        for fold in range(_FOLDS):
            chosen = folds != fold
            model = LogisticRegression(max_iter=1000).fit(columns[chosen], is_sample[chosen])
            counts = (~is_sample[chosen]).sum() / is_sample[chosen].sum()
            slopes.append(model.coef_[0])
            intercepts.append(float(model.intercept_[0]) + np.log(counts))
        fits = cls(np.zeros(0), centre, scale, np.stack(slopes), np.array(intercepts))
        each = fits._each(held_out)
        own = each[np.arange(len(held_out)), folds[: len(held_out)]]
        return replace(fits, held_out=own)

    def weights(self, properties: Floats) -> Floats:
        """Of new images with these properties ``(N, P)``."""
        return np.asarray(self._each(properties).mean(axis=1), dtype=np.float64)

    def _each(self, properties: Floats) -> Floats:
        """The weight that each fit gives, ``(N, 5)``."""
        columns = _quadratic((properties - self.centre) / self.scale)
        logs = columns @ self.slopes.T + self.intercepts
        return np.asarray(np.exp(np.minimum(logs, np.log(_LARGEST))), dtype=np.float64)


def _quadratic(columns: Floats) -> Floats:
    """The columns and their squares."""
    return np.concatenate([columns, columns**2], axis=1)
