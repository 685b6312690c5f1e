"""Rows of Gaussians, and their statistics."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from goen.functional.gaussian import ClassStatistics

Array = NDArray[np.float64]


def drawn(
    seed: int, num_rows: int, dim: int, num_classes: int, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Rows of correlated Gaussians around class means two apart, all moved by `offset`."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_rows)
    means = 2 * rng.normal(size=(num_classes, dim))
    mixing = np.eye(dim) + 0.3 * rng.normal(size=(dim, dim))
    rows = rng.normal(size=(num_rows, dim)) @ mixing + means[labels] + offset
    return torch.from_numpy(rows), torch.from_numpy(labels)


def fed(
    rows: Tensor, labels: Tensor, num_classes: int, cuts: Sequence[int] = ()
) -> ClassStatistics:
    statistics = ClassStatistics(num_classes, rows.shape[1])
    edges = [0, *sorted(cuts), len(rows)]
    for start, stop in pairwise(edges):
        statistics.update(rows[start:stop], labels[start:stop])
    return statistics
