"""Detectors whose parameters given OOD images choose, as the OpenOOD board chooses them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

from goen.detectors._base import Detector
from goen.detectors.best import Best

TUNED = "_tuned"
"""What the name of such a detector ends with: ``knn_tuned``."""

_NEIGHBOURS = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
_DIMENSIONS = (4, 8, 16, 32, 64, 128, 256, 512, 1000)
_PERCENTILES = (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)
SEARCHED: Mapping[str, Mapping[str, Sequence[float]]] = {
    "ash": {"percentile": _PERCENTILES},
    "ash_b": {"percentile": _PERCENTILES},
    "ash_p": {"percentile": _PERCENTILES},
    "dice": {"percentile": (10.0, 30.0, 50.0, 70.0, 90.0)},
    "gen": {"gamma": (0.01, 0.1, 0.5), "top": (10, 100, 1000)},
    "knn": {"k": _NEIGHBOURS},
    "lts": {"percentile": _PERCENTILES},
    "nci": {"alpha": (0.0, 1e-4, 1e-3, 1e-2, 1e-1)},
    "nnguide": {"k": _NEIGHBOURS},
    "react": {"percentile": (85.0, 90.0, 95.0, 99.0)},
    "residual": {"dim": _DIMENSIONS},
    "scale": {"percentile": _PERCENTILES},
    "vim": {"dim": _DIMENSIONS},
    "vra": {"low": (50.0, 60.0, 70.0), "high": (85.0, 90.0, 95.0)},
}
"""The values that are tried of each parameter, by detector: the board's where it has some, with
smaller neighbours and dimensions beside them for small sets; those that do not fit the features
take no part."""


def tuned(name: str, make: Callable[..., Detector]) -> Best:
    """The detector with the parameters that separate given OOD images best.

    Args:
        name: in ``SEARCHED``.
        make: the detector of this name, from its parameters.

    Example:
        >>> from goen.detectors import KNN
        >>> tuned("knn", KNN).needs_ood
        True
    """
    searched = SEARCHED[name]
    grid = [dict(zip(searched, values, strict=True)) for values in product(*searched.values())]
    makers = [partial(make, **settings) for settings in grid]
    return Best.among({repr(maker()): maker for maker in makers})
