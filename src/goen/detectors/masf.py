"""Every channel of every layer tested against the training images of a class."""

from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from goen.detectors._base import SimpleDetector
from goen.errors import FitError, UsageError
from goen.functional._rows import blocks, check_features, check_finite_for_fit
from goen.functional.combination import simes, two_sided_p_values
from goen.outputs import Outputs
from goen.runs.tensors import Tensors

_COUNTS, _FISHER = "class_counts", "fisher"
# Training images of a class below which its p-values say nothing: with one they are all 1.
_FEWEST = 10
# The counts of a forged state must not overflow when they are added.
_MOST_ROWS = 2**40


@final
class MaSF(SimpleDetector):
    r"""Minus the logarithm of the largest p-value over classes; high for OOD.

    Of each class: the empirical two-sided p-value of every channel among the class's training
    images, combined over the channels of a layer by Simes' test, over layers by Fisher's statistic
    :math:`-2 \sum_l \log p_l`, and that turned into a p-value by its distribution over the same
    training images. An image is OOD if it is improbable in every class. A score is at most
    :math:`\log(n + 1)` with n the training images of the smallest class, so images far out tie.
    Classes with fewer than ten are left out and do not count. All training rows are kept.

    Args:
        feature: the layers: the outputs' features to measure, or several of them; the last if not
            given.

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

    def __init__(self, *, feature: str | Sequence[str] | None = None) -> None:
        self.feature = feature
        if feature is not None and not feature:
            raise UsageError("MaSF needs the name of at least one feature.")

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        chosen = self._chosen(outputs)
        for rows in chosen:
            check_finite_for_fit(rows)
        labels = labels.cpu()
        counts = torch.bincount(labels, minlength=outputs.logits.shape[1])
        if int(counts.max()) < _FEWEST:
            raise FitError(
                f"MaSF needs a class with at least {_FEWEST} training images, and the largest has "
                f"{int(counts.max())}."
            )
        by_class = labels.argsort(stable=True)
        layers = {_layer(number): rows[by_class] for number, rows in enumerate(chosen)}
        fisher = [
            _fisher([rows[labels == c] for rows in chosen], ordered)
            for c, ordered in enumerate(_ordered(layers, counts))
        ]
        return {**layers, _COUNTS: counts, _FISHER: torch.cat(fisher)}

    def _prepare(self) -> None:
        fitted = self.fitted_ or {}
        counts = fitted[_COUNTS]
        self._ordered = _ordered(fitted, counts)
        self._null = [
            values.sort().values for values in torch.split(fitted[_FISHER], counts.tolist())
        ]

    def _check_state(self, tensors: Tensors) -> None:
        layers = list(_layers(tensors))
        tensors.check_names([*layers, _COUNTS, _FISHER])
        rows = int(tensors.integers(_COUNTS, ("classes",), low=0, high=_MOST_ROWS).sum())
        wanted = 1 if self.feature is None or isinstance(self.feature, str) else len(self.feature)
        if len(layers) != wanted:
            raise ValueError(f"it has {len(layers)} layers, not {wanted}")
        for name in layers:
            tensors.floats(name, (rows, "features"), dtype=torch.float32)
        tensors.floats(_FISHER, (rows,), dtype=torch.float64)

    def _measure(self, outputs: Outputs) -> Tensor:
        chosen = self._chosen(outputs)
        for feature, values in zip(chosen, self._ordered[0], strict=True):
            check_features(feature, len(values))
        largest = torch.zeros(len(outputs), dtype=torch.float64, device="cpu")
        for block in blocks(len(outputs)):
            rows = [feature[block] for feature in chosen]
            for ordered, null in zip(self._ordered, self._null, strict=True):
                if len(null) >= _FEWEST:
                    at_least = len(null) - torch.searchsorted(null, _fisher(rows, ordered))
                    p = (1 + at_least.to(torch.float64)) / (len(null) + 1)
                    largest[block] = torch.maximum(largest[block], p)
        # A rank is finite whatever the feature is; what is not finite must not pass.
        not_finite = sum(rows.sum(dim=1, dtype=torch.float64) * 0 for rows in chosen)
        return not_finite - largest.log()

    def _chosen(self, outputs: Outputs) -> list[Tensor]:
        chosen = [outputs.feature(name) for name in self.feature_names(outputs)]
        for rows in chosen:
            check_features(rows)
        return [rows.to("cpu", torch.float32) for rows in chosen]


def _layer(number: int) -> str:
    return f"layer.{number}"


def _layers(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    number = 0
    while _layer(number) in tensors:
        yield _layer(number)
        number += 1


def _ordered(fitted: Mapping[str, Tensor], counts: Tensor) -> list[list[Tensor]]:
    """Of each class, each layer's values ``(D, n)``, sorted by channel."""
    split = [torch.split(fitted[name], counts.tolist()) for name in _layers(fitted)]
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
