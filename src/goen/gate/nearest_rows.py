"""The training images nearest to other images."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from goen.checks import check_number
from goen.detectors import Detector
from goen.errors import UsageError
from goen.gate.decision import finite_rows
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


NearestImages = dict[str, tuple[TrainingRow, ...]]
"""The training images nearest to one image, in each layer, the nearest first."""


def nearest_rows(
    detector: Detector, outputs: Outputs, count: int, classes: Sequence[str]
) -> list[NearestImages]:
    """Those of each image; none of an image for which the network's outputs are not finite.

    Raises:
        UsageError: a detector that keeps no training images.
    """
    check_number("count", count, whole=True, at_least=1)
    if not detector.num_kept[0]:
        raise UsageError(f"{detector} keeps no training images; goen_m does.")
    finite = finite_rows(outputs, detector)
    places = torch.arange(len(outputs)) if finite is None else torch.nonzero(finite).flatten()
    found: list[NearestImages] = [dict.fromkeys(detector.features, ()) for _ in range(len(outputs))]
    for layer, near in detector.nearest(outputs[places], count).items():
        columns = (near.numbers.tolist(), near.labels.tolist(), near.distances.tolist())
        for place, *row in zip(places.tolist(), *columns, strict=True):
            found[place][layer] = tuple(
                TrainingRow(number, label, classes[label], distance)
                for number, label, distance in zip(*row, strict=True)
            )
    return found
