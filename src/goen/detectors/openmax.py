"""OpenMax: the probability of a further class, by how far logits are from their class's mean."""

from collections.abc import Mapping
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.errors import FitError
from goen.functional._rows import check_finite_for_fit
from goen.functional.class_means import class_means, correct_classes
from goen.functional.logits import check_several_classes
from goen.outputs import Outputs

# What the least distance of a tail is moved to, as in libMR.
_SHIFT = 10_000.0
# The scale of a class without a tail: every distance is small beside it, and its weight 0.
_NEVER = 1e300


@final
class OpenMax(Detector):
    r"""The log-odds of an unknown class beside the known ones; high for OOD.

    A Weibull distribution is fitted to the largest distances between the logits of correctly
    classified training images and their class's mean logits :math:`m_c`. Its distribution function
    :math:`F_c` at the distance of an image's logits z from :math:`m_c` is how far beyond the class
    the image is. The largest logits give a part of themselves to the unknown class:
    :math:`v_c = z_c (1 - \omega_c F_c(\lVert z - m_c \rVert))` with
    :math:`\omega = 1, (\alpha - 1)/\alpha, \ldots, 1/\alpha` for the :math:`\alpha` largest and 0
    for the others, :math:`u = \sum_c (z_c - v_c)`, and the score is
    :math:`u - \log \sum_c e^{v_c}`.

    Args:
        tail: how many of the largest distances of a class are fitted, at least 2.
        alpha: how many of the largest logits are reduced; all if there are fewer.

    Paper: Bendale and Boult 2016, "Towards Open Set Deep Networks", CVPR 2016, arXiv 1511.06233.
    Departs from the paper: the log-odds in place of the probability, a strictly increasing map of
    it; Euclidean distances, as in OpenOOD. The Weibull distribution has its location 10,000
    below the least distance of the tail, as in libMR: so far away it is a Gumbel distribution, and
    the scale of the logits does not matter. A class with fewer than two correct training images, or
    with equal distances, gives nothing to the unknown class.

    It fails with few training images per class, and where logits are negative: reducing a negative
    logit raises it.

    Example:
        >>> logits = 4 * torch.eye(2).repeat(20, 1) + torch.arange(40)[:, None] / 40
        >>> openmax = OpenMax().fit(Outputs(logits, {}), torch.tensor([0, 1] * 20))
        >>> openmax.score(Outputs(torch.tensor([[4.5, 0.5], [4.5, 4.5]]), {})).round(decimals=2)
        tensor([-3.4000,  4.4000], dtype=torch.float64)
    """

    name: ClassVar[str] = "openmax"
    means_: Tensor
    least_: Tensor
    """The least distance of each class's tail."""
    shape_: Tensor
    scale_: Tensor

    def __init__(self, *, tail: int = 20, alpha: int = 3) -> None:
        self.tail = tail
        self.alpha = alpha
        check_number("tail", tail, whole=True, at_least=2)
        check_number("alpha", alpha, whole=True, at_least=1)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        check_several_classes(outputs.logits)
        check_finite_for_fit(outputs.logits, "logit")
        correct = correct_classes(outputs.logits, labels)
        self.means_, counts = class_means(outputs.logits, correct, self.num_classes_)
        none = [0.0, 1.0, _NEVER]
        fitted = torch.tensor([none] * self.num_classes_, dtype=torch.float64, device="cpu")
        for c in torch.nonzero(counts > 1).flatten().tolist():
            apart = outputs.logits[correct == c].to(torch.float64) - self.means_[c]
            tail = torch.linalg.vector_norm(apart, dim=1).sort().values[-self.tail :].cpu().numpy()
            if tail[-1] > tail[0] + 1e-9 * tail[-1]:
                found = tail[0], *fit_weibull(tail - tail[0] + _SHIFT)
                fitted[c] = torch.tensor(found, dtype=torch.float64, device="cpu")
        if bool((fitted[:, 2] == _NEVER).all()):
            raise FitError(
                "No class has two correctly classified training images at different distances from "
                "their mean, so no distribution of distances can be fitted. Give more images."
            )
        self.least_, self.shape_, self.scale_ = fitted.to(self.means_.device).unbind(dim=1)

    def _expected(self) -> Mapping[str, Expected]:
        classes = (self.num_classes_,)
        positive = torch.finfo(torch.float64).tiny
        return {
            "means": Expected((self.num_classes_, self.num_classes_)),
            "least": Expected(classes, low=0.0),
            "shape": Expected(classes, low=positive),
            "scale": Expected(classes, low=positive),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        wide = outputs.logits.to(torch.float64)
        largest, place = wide.topk(min(self.alpha, wide.shape[1]), dim=1)
        apart = wide[:, None] - self.means_[place]
        distance = torch.linalg.vector_norm(apart, dim=2) - self.least_[place] + _SHIFT
        ratio = distance.clamp_min(0) / self.scale_[place]
        beyond = -torch.expm1(-ratio.pow(self.shape_[place]))
        ranks = torch.arange(place.shape[1], dtype=torch.float64, device=wide.device)
        given = largest * beyond * (1 - ranks / place.shape[1])
        reduced = wide.scatter(1, place, largest - given)
        return given.sum(dim=1) - torch.logsumexp(reduced, dim=1)


def fit_weibull(values: np.ndarray) -> tuple[float, float]:
    r"""Shape k and scale of the Weibull distribution of greatest likelihood, location 0.

    k solves :math:`\sum x^k \log x / \sum x^k - 1/k = \overline{\log x}`, and the scale is
    :math:`(\overline{x^k})^{1/k}`.

    Args:
        values: above 0, not all equal.

    Example:
        >>> shape, scale = fit_weibull(np.array([1.0, 2.0, 3.0, 4.0]))
        >>> round(shape, 3), round(scale, 3)
        (2.453, 2.829)
    """
    from scipy.optimize import brentq  # slow to import

    logs = np.log(values / values.max())  # at most 0, so that no power overflows

    def slope(k: float) -> float:
        powers = np.exp(k * logs)
        return float((powers * logs).sum() / powers.sum() - 1 / k - logs.mean())

    low, high = 1e-3, 1.0
    while slope(high) < 0:
        high *= 2
    shape = float(brentq(slope, low, high, xtol=1e-12, rtol=1e-12))
    return shape, float(values.max() * np.exp(shape * logs).mean() ** (1 / shape))
