"""The distance to the k-th nearest training image."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._bank import check_enough_rows, sample_rows
from goen.detectors._base import Detector, Expected
from goen.errors import FitError, UsageError
from goen.functional._rows import blocks
from goen.functional.cues import normalise
from goen.functional.neighbours import ROUNDING, NeighbourIndex
from goen.io.tensors import Tensors
from goen.outputs import Outputs

# The default neighbour is this share of the median class away, and never farther than this.
_SHARE, _FARTHEST = 1 / 9, 50


@final
class KNN(Detector):
    r"""Cosine distance to the k-th nearest training row; high for OOD.

    :math:`1 - \cos(x, x_{(k)})`. With several features it is the mean of their cosine distances,
    and the k-th nearest row is the k-th by that mean. A row of zeros has no direction: its distance
    to everything is 1. The search is exact, and its memory is bounded.

    Args:
        k: which neighbour; as many training rows are needed. By default a ninth of the images of
            the median class, from 1 to 50: the 50th from 450 images per class on, as for CIFAR-10
            and CIFAR-100, the 10th at 90. Where a class has fewer images than k, its own images
            count as far away.
        feature: which of the outputs' features to measure, or several of them; the last if not
            given.
        rows: of more training rows than these, a random sample is searched, of each class alike:
            k counts in it.

    Paper: Sun et al. 2022, "Out-of-Distribution Detection with Deep Nearest Neighbors".
    Departs from the paper: the cosine distance in place of the Euclidean distance of unit vectors,
    of which it is half the square: the ranking is the same. Several features are an addition.

    Example:
        >>> outputs = Outputs(torch.zeros(3, 2), {"z": torch.tensor([[1.0, 0], [2.0, 0], [0, 1]])})
        >>> detector = KNN(k=2).fit(outputs, torch.tensor([0, 0, 1]))
        >>> detector.score(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[0.6, 0.8]])}))
        tensor([0.4000], dtype=torch.float64)
    """

    name: ClassVar[str] = "knn"
    bank_: Tensor
    neighbour_: Tensor
    """Which neighbour, where the number of training images decided it."""

    def __init__(
        self,
        *,
        k: int | None = None,
        feature: str | Sequence[str] | None = None,
        rows: int = 100_000,
    ) -> None:
        self.k = k
        self.feature = feature
        self.rows = rows
        check_number("rows", rows, whole=True, at_least=1)
        if k is not None:
            check_number("k", k, whole=True, at_least=1)
        if feature is not None and not feature:
            raise UsageError("KNN needs the name of at least one feature.")

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        if len(outputs) > self.rows:
            kept = sample_rows(labels, self.num_classes_, self.rows)
            outputs, labels = outputs[kept.to(outputs.logits.device)], labels.cpu()[kept]
        if self.k is None:
            self.neighbour_ = torch.tensor(neighbour_by_class(labels), device="cpu")
        elif self.k > len(outputs):
            raise FitError(
                f"The distance to neighbour k = {self.k} needs as many training rows, and there "
                f"are {len(outputs)}. Lower k or give more rows."
            )
        self.bank_ = self._unit_rows(outputs)

    def _prepare(self) -> None:
        self._index, self._kth = NeighbourIndex(self.bank_), self._neighbour

    def _expected(self) -> Mapping[str, Expected]:
        return {"bank": Expected(("rows", self.features_width), dtype=torch.float32)}

    def _load(self, tensors: Tensors) -> None:
        own = {name: values for name, values in tensors.items() if name != "neighbour"}
        if self.k is None:
            self.neighbour_ = tensors.integers("neighbour", (), low=1)
            tensors = Tensors(own, tensors.prefix)
        super()._load(tensors)
        check_enough_rows(tensors, self.bank_, self._neighbour)
        longest = float(torch.linalg.vector_norm(self.bank_, dim=1).max())
        if longest > 1 + ROUNDING:
            raise ValueError(
                f"its tensor {tensors.prefix}bank should hold rows no longer than 1, got one of "
                f"{longest:.6g}"
            )

    @property
    def _neighbour(self) -> int:
        return int(self.neighbour_) if self.k is None else self.k

    def _score(self, outputs: Outputs) -> Tensor:
        return self._index.kth_distance(self._unit_rows(outputs), self._kth)

    def _unit_rows(self, outputs: Outputs) -> Tensor:
        """The chosen features side by side, each of length one over the root of their number.

        So the whole has length one, and a product of two is the mean of the parts' cosines.
        """
        chosen = [outputs.feature(name) for name in self.feature_names(outputs)]
        parts = [
            torch.cat([normalise(rows[block]) for rows in chosen], dim=1) / len(chosen) ** 0.5
            for block in blocks(chosen[0].shape[0])
        ]
        none = chosen[0].new_empty(0, sum(rows.shape[1] for rows in chosen), dtype=torch.float32)
        return torch.cat([none, *(part.float() for part in parts)])


def neighbour_by_class(labels: Tensor) -> int:
    """Which neighbour KNN measures by default, by how many images the median class has.

    Example:
        >>> [neighbour_by_class(torch.arange(10).repeat(count)) for count in (4, 90, 450, 4500)]
        [1, 10, 50, 50]
    """
    counts = torch.bincount(labels)
    median = int(counts[counts > 0].median())
    return min(_FARTHEST, max(1, round(median * _SHARE)))
