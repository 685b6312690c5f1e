"""Every channel of every layer tested against the training images of a class."""

from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.detectors._base import Detector
from goen.errors import FitError, UsageError
from goen.functional._rows import check_finite_for_fit
from goen.functional.combination import count_at_least, simes, two_sided_p_values
from goen.io.tensors import Tensors
from goen.outputs import Outputs

# Training images of a class below which its p-values say nothing: with one they are all 1.
_FEWEST = 10
# The counts of a forged state must not overflow when they are added.
_MOST_ROWS = 2**40


@final
class MaSF(Detector):
    r"""Minus the logarithm of the largest p-value over classes; high for OOD.

    Of each class: the empirical two-sided p-value of every channel among the class's training
    images, combined over the channels of a layer by Simes' test, over layers by Fisher's statistic
    :math:`-2 \sum_l \log p_l`, and that turned into a p-value by its distribution over the same
    training images. An image is OOD if it is improbable in every class. A score is at most
    :math:`\log(n + 1)` with n the training images of the smallest class, so images far out tie.
    Classes with fewer than ten are left out and do not count. All training rows are kept.

    Args:
        feature: the layers: one of the outputs' features, or several of them; all if not given.

    Paper: Haroush et al. 2022, "A Statistical Framework for Efficient Out of Distribution Detection
    in Deep Neural Networks" (Max-Simes-Fisher).
    Departs from the paper: maps are pooled as the network pools them, where the paper takes the
    maximum; the scales of the network, where the paper takes the input of every batch norm and
    linear layer; exact ranks in place of a table of quantiles.

    Example:
        >>> outputs = Outputs(torch.zeros(11, 1), {"z": torch.arange(11.0)[:, None]})
        >>> detector = MaSF().fit(outputs, torch.zeros(11, dtype=torch.int64))
        >>> tested = Outputs(torch.zeros(2, 1), {"z": torch.tensor([[5.0], [99.0]])})
        >>> detector.score(tested).exp().round()
        tensor([ 1., 12.], dtype=torch.float64)
    """

    name: ClassVar[str] = "masf"
    reads_all_features = True
    layers_: tuple[Tensor, ...]
    class_counts_: Tensor
    fisher_: Tensor

    def __init__(self, *, feature: str | Sequence[str] | None = None) -> None:
        self.feature = feature
        if feature is not None and not feature:
            raise UsageError("MaSF needs the name of at least one feature.")

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        chosen = self._chosen(outputs)
        for rows in chosen:
            check_finite_for_fit(rows)  # in float32 as well
        labels = labels.cpu()
        counts = torch.bincount(labels, minlength=outputs.logits.shape[1])
        if int(counts.max()) < _FEWEST:
            raise FitError(
                f"MaSF needs a class with at least {_FEWEST} training images, and the largest has "
                f"{int(counts.max())}."
            )
        by_class = labels.argsort(stable=True)
        self.layers_ = tuple(rows[by_class] for rows in chosen)
        self.class_counts_ = counts
        fisher = [
            _fisher([rows[labels == c] for rows in chosen], ordered)
            for c, ordered in enumerate(_ordered(self.layers_, counts))
        ]
        self.fisher_ = torch.cat(fisher)

    def _prepare(self) -> None:
        counts = self.class_counts_
        self._ordered = _ordered(self.layers_, counts)
        self._null = [v.sort().values for v in torch.split(self.fisher_, counts.tolist())]

    def state(self) -> dict[str, Tensor]:
        layers = {f"layer.{number}": rows for number, rows in enumerate(self.layers_)}
        return {**super().state(), **layers}

    def _load(self, tensors: Tensors) -> None:
        names = [f"layer.{number}" for number in range(len(self.features))]
        tensors.check_names([*names, "class_counts", "fisher"])
        shape = (self.num_classes_,)
        self.class_counts_ = tensors.integers("class_counts", shape, low=0, high=_MOST_ROWS)
        if int(self.class_counts_.max()) < _FEWEST:
            raise ValueError(
                f"its tensor {tensors.prefix}class_counts should have a class of at least "
                f"{_FEWEST} images"
            )
        rows = int(self.class_counts_.sum())
        self.layers_ = tuple(
            tensors.floats(name, (rows, width), dtype=torch.float32)
            for name, width in zip(names, (self.widths_ or {}).values(), strict=True)
        )
        self.fisher_ = tensors.floats("fisher", (rows,))

    def _score(self, outputs: Outputs) -> Tensor:
        chosen = self._chosen(outputs)
        largest = self._largest(chosen)
        # A rank is finite whatever the feature is; what is not finite must not pass.
        not_finite = sum(rows.sum(dim=1, dtype=torch.float64) * 0 for rows in chosen)
        return not_finite - largest.log()

    def _largest(self, rows: list[Tensor]) -> Tensor:
        """The largest p-value over classes, ``(N,)``."""
        found = [
            (1 + count_at_least(null, _fisher(rows, ordered))) / (len(null) + 1)
            for ordered, null in zip(self._ordered, self._null, strict=True)
            if len(null) >= _FEWEST
        ]
        return torch.stack(found).amax(dim=0)

    def _chosen(self, outputs: Outputs) -> list[Tensor]:
        names = self.feature_names(outputs)
        return [outputs.feature(name).to("cpu", torch.float32) for name in names]


def _ordered(layers: Sequence[Tensor], counts: Tensor) -> list[list[Tensor]]:
    """Of each class, each layer's values ``(D, n)``, sorted by channel."""
    split = [torch.split(rows, counts.tolist()) for rows in layers]
    return [
        [rows.sort(dim=0).values.T.contiguous() for rows in of_class]
        for of_class in zip(*split, strict=True)
    ]


def _fisher(rows: list[Tensor], ordered: list[Tensor]) -> Tensor:
    """Fisher's statistic ``(N,)`` of the layers, each Simes' p-value of its channels."""
    layers = [simes(two_sided_p_values(*pair)) for pair in zip(rows, ordered, strict=True)]
    statistic = -2 * torch.stack(layers).log().sum(dim=0)
    # Equal ranks must stay equal: the last bit of a logarithm depends on the place in the batch.
    return statistic.round(decimals=9)
