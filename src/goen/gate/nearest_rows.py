"""The training images nearest to the images of a prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from goen.checks import check_number
from goen.detectors import CueDetector
from goen.errors import UsageError
from goen.functional.ranking import Floats
from goen.outputs import Outputs


class TrainingRow(NamedTuple):
    """One training image.

    Attributes:
        row: its number among all training images in their order, from 0.
        label: the class number it was trained with.
        name: of that class.
        distance: between unit vectors of the layer's features, Euclidean.
    """

    row: int
    label: int
    name: str
    distance: float


@dataclass(frozen=True)
class NearestRows:
    """The k training images nearest to each of N images in one layer, the nearest first.

    Attributes:
        rows: ``(N, k)``, see ``TrainingRow``; -1 where the network's outputs are not finite.
        labels: ``(N, k)``.
        distances: ``(N, k)``.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    distances: Floats

    def take(self, wanted: NDArray[np.int64]) -> Self:
        """Those of these images."""
        return type(self)(self.rows[wanted], self.labels[wanted], self.distances[wanted])

    def of(self, image: int, classes: Sequence[str]) -> tuple[TrainingRow, ...]:
        """Those of one image, with the names of their classes."""
        columns = zip(self.rows[image], self.labels[image], self.distances[image], strict=True)
        return tuple(
            TrainingRow(int(row), int(label), classes[label], float(distance))
            for row, label, distance in columns
            if row >= 0
        )


def find_neighbours(
    detector: CueDetector, outputs: Outputs, count: int, broken: Tensor | None
) -> dict[str, NearestRows] | None:
    """The ``count`` nearest in each layer; ``None`` for 0.

    Args:
        detector: keeps training images.
        outputs: of N images.
        count: how many.
        broken: ``(N,)``, which images have none, if any.

    Raises:
        UsageError: no number of images, or a detector that keeps none.
    """
    check_number("nearest", count, whole=True, at_least=0)
    if count == 0:
        return None
    if not detector.num_kept[0]:
        raise UsageError(f"This gate keeps no training images, got nearest={count}. Leave it out.")
    found = {}
    for layer, near in detector.nearest(outputs, count).items():
        rows, labels, distances = near.numbers, near.labels, near.distances.double()
        if broken is not None:
            rows = rows.masked_fill(broken[:, None], -1)
            labels = labels.masked_fill(broken[:, None], -1)
            distances = distances.masked_fill(broken[:, None], torch.inf)
        found[layer] = NearestRows(rows.numpy(), labels.numpy(), distances.numpy())
    return found


def join_neighbours(parts: Sequence[Mapping[str, NearestRows]]) -> dict[str, NearestRows]:
    """Those of several batches as one."""
    return {
        layer: NearestRows(
            np.concatenate([part[layer].rows for part in parts]),
            np.concatenate([part[layer].labels for part in parts]),
            np.concatenate([part[layer].distances for part in parts]),
        )
        for layer in parts[0]
    }
