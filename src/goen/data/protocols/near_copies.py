"""Near-copies between the sets of a protocol: the same picture saved again, or nearly."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from goen.data.imageset import ImageSet

# Of thumbnails, and how far they may differ, root mean square, as a share of white: JPEG at usual
# qualities and a change of size change less.
_SIDE = 16
TOLERANCE = 5 / 255
# The deviation of an image's pixels below which it shows nothing: a white page is like any other.
_FLAT = 8 / 255
MOST_TRAINING, MOST_COMPARED = 100_000, 2_000
_CHUNK = 256


class NearPair(NamedTuple):
    """A row of a set, and the training row that it is a near-copy of."""

    row: int
    training_row: int


class Thumbnails:
    """Thumbnails of training images, to compare others with.

    Args:
        training: of more than ``MOST_TRAINING`` images as many are compared, evenly spread.
    """

    def __init__(self, training: ImageSet) -> None:
        self._rows = _spread(len(training), MOST_TRAINING)
        self._thumbnails = _thumbnails(training, self._rows)

    def near_copies(self, images: ImageSet) -> list[NearPair]:
        """The images whose thumbnail is that of a training image, but for noise.

        Of more than ``MOST_COMPARED`` images as many are compared, evenly spread. Images of nearly
        one colour are not.
        """
        rows = _spread(len(images), MOST_COMPARED)
        own = _thumbnails(images, rows)
        starts = range(0, len(own), _CHUNK)
        parts = [torch.cdist(own[s : s + _CHUNK], self._thumbnails).min(dim=1) for s in starts]
        distance, nearest = (torch.cat(values) for values in zip(*parts, strict=True))
        near = distance < TOLERANCE * own.shape[1] ** 0.5
        found = torch.nonzero(near & (own.std(dim=1) > _FLAT)).flatten().tolist()
        return [NearPair(int(rows[i]), int(self._rows[nearest[i]])) for i in found]


def _spread(count: int, most: int) -> NDArray[np.int64]:
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def _thumbnails(images: ImageSet, rows: NDArray[np.int64]) -> Tensor:
    """Shrunk images in [0, 1] ``(n, D)``; those of several bands as the mean of the bands."""
    white = np.iinfo(images.pixels.dtype).max
    parts = []
    for start in range(0, len(rows), _CHUNK):
        pixels = torch.from_numpy(images.read(rows[start : start + _CHUNK])).float() / white
        if pixels.shape[1] != 3:
            pixels = pixels.mean(dim=1, keepdim=True)
        parts.append(adaptive_avg_pool2d(pixels, _SIDE).flatten(1))
    return torch.cat(parts)
