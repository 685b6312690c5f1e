"""The distance to the k-th nearest training image."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import SimpleDetector
from goen.errors import FitError, UsageError
from goen.functional._rows import blocks, check_features, check_finite_for_fit
from goen.functional.cues import normalise
from goen.functional.neighbours import NeighbourIndex
from goen.outputs import Outputs
from goen.runs.tensors import Tensors


@final
class KNN(SimpleDetector):
    r"""Cosine distance to the k-th nearest training row; high for OOD.

    :math:`1 - \cos(x, x_{(k)})`. With several features it is the mean of their cosine distances,
    and the k-th nearest row is the k-th by that mean. A row of zeros has no direction: its distance
    to everything is 1. The search is exact, and its memory is bounded.

    Args:
        k: which neighbour; as many training rows are needed.
        feature: which of the outputs' features to measure, or several of them; the last if not
            given.

    Paper: Sun et al. 2022, "Out-of-Distribution Detection with Deep Nearest Neighbors".
    Departs from the paper: the cosine distance in place of the Euclidean distance of unit vectors,
    of which it is half the square: the ranking is the same. Several features are an addition.

    Example:
        >>> outputs = Outputs(torch.zeros(3, 2), {"z": torch.tensor([[1.0, 0], [2.0, 0], [0, 1]])})
        >>> detector = KNN(k=2).fit(outputs, torch.tensor([0, 0, 1]))
        >>> detector.score(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[0.6, 0.8]])}))
        tensor([0.4000], dtype=torch.float64)
    """

    def __init__(self, *, k: int = 50, feature: str | Sequence[str] | None = None) -> None:
        self.k = k
        self.feature = feature
        check_number("k", k, whole=True, at_least=1)
        if feature is not None and not feature:
            raise UsageError("KNN needs the name of at least one feature.")

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        if self.k > len(outputs):
            raise FitError(
                f"The distance to neighbour k = {self.k} needs as many training rows, and there "
                f"are {len(outputs)}. Lower k or give more rows."
            )
        for rows in self._chosen(outputs):
            check_finite_for_fit(rows)
        return {"bank": self._unit_rows(outputs)}

    def _prepare(self) -> None:
        self._index = NeighbourIndex((self.fitted_ or {})["bank"])

    def _check_state(self, tensors: Tensors) -> None:
        tensors.check_names(["bank"])
        bank = tensors.floats("bank", ("rows", "features"), dtype=torch.float32)
        if len(bank) < self.k:
            raise ValueError(
                f"its tensor {tensors.prefix}bank should have at least {self.k} rows, got "
                f"{len(bank)}"
            )

    def _measure(self, outputs: Outputs) -> Tensor:
        return self._index.kth_distance(self._unit_rows(outputs), self.k)

    def _chosen(self, outputs: Outputs) -> list[Tensor]:
        chosen = [outputs.feature(name) for name in self.feature_names(outputs)]
        for rows in chosen:
            check_features(rows)
        return chosen

    def _unit_rows(self, outputs: Outputs) -> Tensor:
        """The chosen features side by side, each of length one over the root of their number.

        So the whole has length one, and a product of two is the mean of the parts' cosines.
        """
        chosen = self._chosen(outputs)
        width = sum(rows.shape[1] for rows in chosen)
        out = torch.empty(len(outputs), width, dtype=torch.float32, device=chosen[0].device)
        for block in blocks(len(outputs)):
            unit = torch.cat([normalise(rows[block]) for rows in chosen], dim=1)
            out[block] = unit / len(chosen) ** 0.5
        return out
