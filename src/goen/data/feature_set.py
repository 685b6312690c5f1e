"""Rows of features in the place of images: a set with roles, splits and an identity."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from goen.data.imageset import DIGEST, ImageSet, Pixels
from goen.data.input_spec import digest_tensors
from goen.data.inputs import tensors
from goen.errors import UsageError
from goen.outputs import LinearClassifier


@dataclass(frozen=True, eq=False, repr=False)
class FeatureSet(ImageSet):
    """Features that somebody already has, as a set of a protocol; see ``FeatureSet.of``.

    It has labels, classes, splits and an identity like every other set. In the place of pixels it
    has the hash of each row, so that a row in two sets is found.

    Attributes:
        arrays: ``(M, D)`` by name; ``logits`` are a classifier's.
        classifier: what makes the logits of one of the features, if it is known.
    """

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    classifier: LinearClassifier | None = None

    @classmethod
    def of(
        cls,
        name: str,
        arrays: Mapping[str, NDArray[Any]],
        labels: NDArray[Any] | None,
        classes: tuple[str, ...],
        classifier: LinearClassifier | None = None,
    ) -> "FeatureSet":
        """The rows of these arrays, as many of each.

        Args:
            name: what people call it.
            arrays: ``(N, D)`` by name.
            labels: ``(N,)`` class numbers; without any, all rows are of one class, its own name.
            classes: names of the classes.
            classifier: what makes the logits of one of the features.

        Example:
            >>> rows = FeatureSet.of("a", {"z": np.eye(3, dtype=np.float32)}, None, ())
            >>> len(rows), rows.take([2]).read_inputs(slice(1))["z"].tolist()
            (3, [[0.0, 0.0, 1.0]])
        """
        counts = {len(part) for part in arrays.values()}
        if len(counts) != 1:
            raise UsageError(f"{name}: each array has as many rows as the others, got {counts}.")
        if labels is None:
            labels, classes = np.zeros(counts.pop(), np.int64), (name,)
        digests = digest_tensors(tensors(arrays))
        hashes = np.frombuffer(digests.tobytes(), np.uint8).reshape(-1, 1, 1, DIGEST.itemsize)
        return cls(
            name,
            hashes,
            labels,
            classes,
            known_digests=digests,
            arrays=arrays,
            classifier=classifier,
        )

    @property
    def widths(self) -> dict[str, int]:
        """Of each array."""
        return {name: int(part.shape[1]) for name, part in self.arrays.items()}

    def read_inputs(self, rows: slice) -> dict[str, NDArray[Any]]:
        """These rows of the arrays, by name."""
        wanted = rows if self.rows is None else self.rows[rows]
        return {name: part[wanted] for name, part in self.arrays.items()}

    def read(self, rows: slice | ArrayLike | None = None) -> Pixels:
        """An error: there are no pixels.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{self.name} holds features: there are no images to read.")

    def __repr__(self) -> str:
        return f"FeatureSet({self.name}: {len(self)} rows of {', '.join(self.arrays)})"
