"""Some of the training images' features, drawn evenly from every class as they stream by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from goen.errors import ArtifactError
from goen.functional.class_means import class_means
from goen.functional.cues import normalise
from goen.functional.neighbours import NeighbourIndex
from goen.io.limits import CLASSES
from goen.io.tensors import Tensors
from goen.outputs import Outputs

ROWS = 5_000
# The k-th neighbour is this share of the smallest class away: the 10th of 500 rows, the 90th of
# 4,500. Of the smallest, or the neighbours of a rare class would be images of others.
_SHARE = 1 / 50
_SEED = 0
# By how much squared lengths of saved rows may differ from 1: float32 rounds them by far less.
_LENGTH_TOLERANCE = 1e-4
# Keys that are drawn again at once to find out which images are kept: 8 MB.
_KEYS_AT_ONCE = 1 << 20
# The largest number of an image that is looked for; a forged bank could claim to have seen any.
_MOST_SEEN = 1 << 31


@dataclass(frozen=True)
class NearestImages:
    """The kept training images nearest to each of N images in one layer, the nearest first.

    Attributes:
        numbers: ``(N, k)``: each one's number among all training images in their order, from 0.
        labels: ``(N, k)``: the labels they were trained with.
        distances: ``(N, k)``: between unit vectors, Euclidean, as the layer's cue.
    """

    numbers: Tensor
    labels: Tensor
    distances: Tensor


class Bank:
    """Unit vectors of training images, layer by layer, and how far a query lies from them.

    Each class keeps at most its share of ``rows``. Which images are kept is decided by a number
    that the image's row in the training set draws, so any chunks of the same set keep the same
    images. The neighbour whose distance is measured is a fiftieth of the rows of the smallest class
    away, so that the measure means the same for a small bank and a large one.

    Args:
        layers: the features to keep.
        rows: of all classes together.

    Example:
        >>> outputs = Outputs(torch.zeros(3, 2), {"z": torch.tensor([[2.0, 0], [1, 0], [0, 1]])})
        >>> bank = Bank(["z"]).update(outputs, torch.tensor([0, 0, 1]))
        >>> bank.distance(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[0.0, 5.0]])}), "z")
        tensor([0.], dtype=torch.float64)
    """

    def __init__(self, layers: Sequence[str], rows: int = ROWS) -> None:
        self.layers = tuple(layers)
        self.rows = rows
        self.num_classes = 0
        self.num_seen = 0
        """How many training images were offered."""
        self.neighbour = 0
        """Which neighbour's distance is measured."""
        self.unit: dict[str, Tensor] = {}
        """The rows that are kept of each layer, ``(M, D)`` float32."""
        self._indices: dict[str, NeighbourIndex] = {}
        self._labels = torch.zeros(0, dtype=torch.int64, device="cpu")
        self._sampling_keys = torch.zeros(0, dtype=torch.float64, device="cpu")
        self._numbers: Tensor | None = None

    def __len__(self) -> int:
        return len(self._labels)

    def update(self, outputs: Outputs, labels: Tensor) -> Self:
        """Offer the next training images, with finite features, and their labels ``(N,)``.

        Of these and the kept ones, those that have one of the lowest keys of their class are kept.
        """
        self.num_classes = outputs.logits.shape[1]
        start, self.num_seen = self.num_seen, self.num_seen + len(outputs)
        labels = torch.cat([self._labels, labels.detach().cpu().to(torch.int64)])
        keys = torch.cat([self._sampling_keys, _sampling_keys(start, len(outputs))])
        kept = _first_of_each_class(labels, keys, -(-self.rows // self.num_classes))
        if len(self) and bool((kept < len(self)).all()):
            return self  # of many images, most batches change nothing: no rows need be copied
        is_new = kept >= len(self)
        for layer in self.layers:
            features = outputs.feature(layer)
            added = (kept[is_new] - len(self)).to(features.device)
            # Only of the rows that are kept: there may be millions of others.
            new = normalise(features[added]).to("cpu", torch.float32)
            rows = new.new_empty((len(kept), new.shape[1]))
            rows[is_new] = new
            if len(self):
                rows[~is_new] = self.unit[layer][kept[~is_new]]
            self.unit[layer] = rows
        self._keep(labels[kept], keys[kept])
        return self

    def _keep(self, labels: Tensor, keys: Tensor) -> None:
        """These are the labels and keys of the rows that are kept."""
        self._labels, self._sampling_keys, self._numbers = labels, keys, None
        # The rows are few or many: the indices are made when they are first asked for.
        self._indices = {}
        counts = torch.bincount(labels)
        smallest = int(counts[counts > 0].min()) if len(labels) else 0
        self.neighbour = max(1, round(smallest * _SHARE))

    def distance(self, outputs: Outputs, layer: str) -> Tensor:
        """From each unit vector to that neighbour, Euclidean, ``(N,)`` float64 in [0, 2].

        A row of zeros has no direction: it is as far as a right angle from everything.
        """
        unit = normalise(outputs.feature(layer))
        return (2 * self._index(layer).kth_distance(unit, self.neighbour)).clamp_min(0).sqrt()

    def class_sums(self, layer: str, num_classes: int) -> tuple[Tensor, Tensor]:
        """The sum ``(C, D)`` float64 of the kept rows of each class in a layer, and how many."""
        means, counts = class_means(self.unit[layer], self._labels, num_classes)
        return means * counts[:, None], counts

    def _index(self, layer: str) -> NeighbourIndex:
        """Of this layer's rows, made when first asked for after an update.

        Of two threads that ask at the same time each may make one; either serves both.
        """
        index = self._indices.get(layer)
        if index is None:
            index = self._indices[layer] = NeighbourIndex(self.unit[layer])
        return index

    def nearest(self, outputs: Outputs, layer: str, count: int) -> NearestImages:
        """The ``count`` kept images nearest to each of the outputs in this layer; all if fewer."""
        unit = normalise(outputs.feature(layer))
        cosine, rows = self._index(layer).nearest(unit, min(count, len(self)))
        distances = (2 * cosine).clamp_min(0).sqrt()
        return NearestImages(self.numbers[rows], self._labels[rows], distances)

    @property
    def numbers(self) -> Tensor:
        """``(M,)``: the row of each kept image in the training set, from 0.

        The random number of an image is that of its row, so it gives the row.

        Raises:
            ArtifactError: the random numbers are not those of a stream of so many images.
        """
        if self._numbers is None:
            self._numbers = _places(self._sampling_keys, min(self.num_seen, _MOST_SEEN))
        return self._numbers

    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt, for an artifact."""
        counts = torch.tensor([self.num_classes, self.num_seen, self.rows], device="cpu")
        state = {"labels": self._labels, "sampling_keys": self._sampling_keys, "counts": counts}
        return state | {f"unit.{i}": self.unit[layer] for i, layer in enumerate(self.layers)}

    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        """Take what ``state`` gave.

        Raises:
            ValueError: a tensor that no bank has; the message names it.
        """
        tensors = Tensors.of(state)
        tensors.check_names(
            ["counts", "labels", "sampling_keys", *(f"unit.{i}" for i in range(len(self.layers)))]
        )
        num_classes, seen, rows = tensors.integers("counts", (3,), low=1).tolist()
        if num_classes > CLASSES:
            raise ValueError(f"its bank should have at most {CLASSES:,} classes, got {num_classes}")
        labels = tensors.integers("labels", ("rows",), low=0, high=num_classes - 1)
        most = int(torch.bincount(labels).max())
        if len(labels) > seen or most > -(-rows // num_classes):
            raise ValueError(
                f"its bank should be a sample of {seen} images with {-(-rows // num_classes)} of "
                f"each class at most, got {len(labels)} images with {most} of one class"
            )
        keys = tensors.floats("sampling_keys", (len(labels),), low=0.0, high=1.0)
        self.unit = {
            layer: _unit_rows(tensors, f"unit.{i}", len(labels))
            for i, layer in enumerate(self.layers)
        }
        self.num_classes, self.num_seen, self.rows = num_classes, seen, rows
        self._keep(labels, keys)
        self._indices = {layer: NeighbourIndex(values) for layer, values in self.unit.items()}
        return self


def check_enough_rows(tensors: Tensors, bank: Tensor, least: int) -> None:
    """Raise a ``ValueError`` if the bank of a saved state has fewer rows than are searched for."""
    if len(bank) < least:
        raise ValueError(
            f"its tensor {tensors.prefix}bank should have at least {least} rows, got {len(bank)}"
        )


def _unit_rows(tensors: Tensors, name: str, count: int) -> Tensor:
    """The tensor of this name, if each of its rows has length 1 or is zero."""
    rows = tensors.floats(name, (count, "features"), dtype=torch.float32)
    squared = torch.linalg.vecdot(rows, rows)
    odd = ((squared - 1).abs() > _LENGTH_TOLERANCE) & (squared != 0)
    if bool(odd.any()):
        length = float(squared[odd][0]) ** 0.5
        raise ValueError(
            f"its tensor {tensors.prefix}{name} should hold rows of length 1, got one of "
            f"{length:.6g}"
        )
    return rows


def sample_rows(labels: Tensor, num_classes: int, rows: int) -> Tensor:
    """Which of these training images a ``Bank`` of so many rows keeps, by number, ``(M,)``.

    Example:
        >>> sample_rows(torch.tensor([0, 0, 0, 1]), 2, rows=4).sort().values.tolist()
        [1, 2, 3]
    """
    labels = labels.detach().cpu().to(torch.int64)
    return _first_of_each_class(labels, _sampling_keys(0, len(labels)), -(-rows // num_classes))


def _sampling_keys(start: int, count: int) -> Tensor:
    """Numbers ``start`` to ``start + count`` of one endless row of random numbers in [0, 1)."""
    generator = np.random.Generator(np.random.PCG64(_SEED).advance(start))
    return torch.from_numpy(generator.random(count))


def _places(keys: Tensor, count: int) -> Tensor:
    """Which of the first ``count`` numbers of the endless row each of these is.

    Example:
        >>> _places(_sampling_keys(5, 2), 100)
        tensor([5, 6])
    """
    order = torch.argsort(keys)
    wanted = keys[order]
    places = torch.full_like(order, -1)
    for start in range(0, count, _KEYS_AT_ONCE):
        if not bool((places < 0).any()):
            break
        drawn = _sampling_keys(start, min(_KEYS_AT_ONCE, count - start))
        at = torch.searchsorted(wanted, drawn).clamp_max(len(wanted) - 1)
        found = torch.nonzero(wanted[at] == drawn).flatten()
        places[order[at[found]]] = start + found
    if bool((places < 0).any()):
        raise ArtifactError(
            "The random numbers by which this gate chose the training images that it keeps are not "
            "those of goen: the gate was changed, or made by another version. Fit it again."
        )
    return places


def _first_of_each_class(labels: Tensor, keys: Tensor, most: int) -> Tensor:
    """Which rows have one of the ``most`` lowest keys of their class, in the order of the keys.

    Example:
        >>> _first_of_each_class(torch.tensor([0, 0, 0, 1]), torch.tensor([0.9, 0.2, 0.5, 0.7]), 2)
        tensor([1, 2, 3])
    """
    order = torch.argsort(keys)
    by_class = order[torch.argsort(labels[order], stable=True)]
    starts = torch.searchsorted(labels[by_class], labels[by_class])
    place = torch.arange(len(labels), device=labels.device) - starts
    kept = by_class[place < most]
    return kept[torch.argsort(keys[kept])]
