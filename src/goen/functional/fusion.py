"""Several cues to one: a logistic regression that may only rise with each of them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from goen.errors import FitError

# The pull of the weights' mean towards 1: it only keeps cues that separate perfectly from taking
# the weights to infinity.
PULL = 0.01
# The pull of each weight towards their mean. A kind of OOD that moves one cue carries no
# information on other kinds: chosen so that what is gained on the kinds shown is not lost on others
# (results/log.md).
EVENNESS = 0.3
# The largest slope, for cues of size 1, of an optimum that the search did not report as one. Its
# last line search often fails there by rounding alone, at slopes below 1e-7.
_FLAT = 1e-6

Floats = NDArray[np.float64]


def fuse(
    id_cues: Tensor, ood_cues: Sequence[Tensor], *, pull: float = PULL, evenness: float = EVENNESS
) -> tuple[Tensor, float]:
    r"""Weights ``(K,)``, none negative, and bias of the log-odds of being OOD.

    They minimise, over :math:`w \ge 0` and b, with :math:`s = w \cdot x + b`,

    .. math:: \tfrac12 \overline{\log(1 + e^{s})}_{ID}
              + \tfrac12 \frac1J \sum_j \overline{\log(1 + e^{-s})}_{OOD_j}
              + \tfrac{\lambda}{2} K (\bar w - 1)^2 + \tfrac{\mu}{2} \lVert w - \bar w \rVert^2

    ID and OOD have the same weight however many images there are of either, and so has each kind j.
    The problem is convex, strictly so in w: one answer, whatever the start.

    Args:
        id_cues: ``(n, K)``, standardised, higher for OOD.
        ood_cues: of each kind, ``(m, K)``.
        pull: lambda, of the mean weight towards 1.
        evenness: mu, of each weight towards the mean.

    Raises:
        FitError: cues that are not finite, a kind without images, or no convergence.

    Example:
        >>> weights, bias = fuse(torch.tensor([[-1.0], [0.0]]), [torch.tensor([[4.0], [5.0]])])
        >>> bool(weights[0] > 1), bool(-5 * weights[0] < bias < 0)
        (True, True)
    """
    from scipy.optimize import minimize  # slow to import, and only this needs it

    rows, weight, sign = _weighed(id_cues, ood_cues)

    def value_and_slope(theta: Floats) -> tuple[float, Floats]:
        w, b = theta[:-1], theta[-1]
        margin = sign * (rows @ w + b)
        mean = w.mean()
        drag = pull * (mean - 1) + evenness * (w - mean)  # the slope of the two pulls
        value = weight @ np.logaddexp(0, margin) + drag @ (w - 1) / 2
        # The logistic function of the margin, without overflow on either side.
        slope = weight * sign * np.exp(-np.logaddexp(0, -margin))
        return float(value), np.append(slope @ rows + drag, slope.sum())

    columns, largest = rows.shape[1], np.abs(rows).max()
    found = minimize(
        value_and_slope,
        np.append(np.ones(columns), 0.0),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * columns + [(None, None)],
        options={"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-9},
    )
    is_flat = _steepest(found.x, value_and_slope(found.x)[1]) <= _FLAT * max(1.0, largest)
    if not np.isfinite(found.fun) or not (found.success or is_flat):
        raise FitError(
            f"The weights of the cues did not converge ({found.message.strip(': ')} after "
            f"{found.nit} steps). Cues have a mean near 0 and a standard deviation near 1 on ID "
            f"images; the largest here is {largest:.3g}. Standardise them."
        )
    return torch.from_numpy(found.x[:-1].copy()), float(found.x[-1])


def _steepest(theta: Floats, slope: Floats) -> float:
    """How far the slope leads down at most in an allowed direction: nearly 0 at the optimum."""
    at_bound = np.append(theta[:-1] <= 0, False)  # from there a weight can only grow
    return float(np.where(at_bound, np.maximum(-slope, 0), np.abs(slope)).max())


def _weighed(id_cues: Tensor, ood_cues: Sequence[Tensor]) -> tuple[Floats, Floats, Floats]:
    """All rows, the weight of each in the loss (they sum to 1), and 1 for ID, -1 for OOD."""
    parts = [part.detach().to("cpu", torch.float64).numpy() for part in (id_cues, *ood_cues)]
    for part in parts:
        if not len(part) or not np.isfinite(part).all():
            raise FitError(
                f"Cues of {len(part)} images cannot be weighed: there must be one image or more, "
                "and no cue may be NaN or infinite."
            )
    shares = [0.5] + [0.5 / len(ood_cues)] * len(ood_cues)
    weight = [np.full(len(part), s / len(part)) for part, s in zip(parts, shares, strict=True)]
    sign = np.repeat([1.0, -1.0], [len(id_cues), sum(map(len, ood_cues))])
    return np.concatenate(parts), np.concatenate(weight), sign
