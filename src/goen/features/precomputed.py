"""The network of a gate that is fitted on features somebody already has: there is none."""

from collections.abc import Collection, Mapping
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from goen.errors import UsageError, unknown
from goen.outputs import LinearClassifier, Outputs

LOGITS = "logits"
FEATURES = "features"
"""The name of the only feature, where none is given."""
Array: TypeAlias = Tensor | NDArray[Any]
NEVER = -1e30
"""The logit of a class without images: finite, because what is not finite is flagged."""
# Unit vectors are added in whole multiples of these. Such sums are exact in float64, so they are
# the same in any order of batches: of up to 2^23 images of one class (sums), of up
# to 2^33 images (squares, each of which is 1 or 0).
_STEP = 2.0**-30
_SQUARE_STEP = 2.0**-20


class Precomputed(nn.Module):
    """Features by name, as they are, to ``Outputs``; with logits, or with those of class means.

    Without a classifier the label is that of the nearest class: of the class whose mean unit vector
    of the last feature is nearest. The logits are those of Gaussians around the means with one
    variance for all classes and dimensions.

    Args:
        widths: of each feature, by name; the last one is the one that classes are told apart by.
        num_classes: how many there are; 1 if nothing is known of classes.
        has_logits: whether logits are among the inputs.
        classifier: that gives these logits, if it is known; it is not saved.

    Example:
        >>> network = Precomputed({"clip": 2}, 2, has_logits=False)
        >>> train = {"clip": torch.tensor([[2.0, 0.1], [3.0, 0.0], [0.0, 1.0], [0.1, 1.0]])}
        >>> network.add(train, torch.tensor([0, 0, 1, 1])) is network
        True
        >>> network({"clip": torch.tensor([[9.0, 1.0]])}).logits.argmax(1)
        tensor([0])
    """

    sums: Tensor
    counts: Tensor
    squares: Tensor

    def __init__(
        self,
        widths: Mapping[str, int],
        num_classes: int,
        *,
        has_logits: bool,
        classifier: LinearClassifier | None = None,
    ) -> None:
        super().__init__()
        if not widths or LOGITS in widths:
            raise UsageError(f"Features have names, none of them {LOGITS!r}; got {[*widths]}.")
        self.widths = dict(widths)
        self.num_classes = num_classes
        self.has_logits = has_logits
        self.classifier = classifier
        if not has_logits:
            shape = (num_classes, self.widths[self.last])
            self.register_buffer("sums", torch.zeros(shape, dtype=torch.float64))
            self.register_buffer("counts", torch.zeros(num_classes, dtype=torch.int64))
            self.register_buffer("squares", torch.zeros((), dtype=torch.float64))

    @property
    def last(self) -> str:
        """The feature that classes are told apart by, where there are no logits."""
        return list(self.widths)[-1]

    def add(self, inputs: Mapping[str, Tensor], labels: Tensor) -> Self:
        """Add training inputs to the means of their classes; nothing is to be done with logits."""
        if not self.has_logits:
            unit, numbers = _unit(inputs[self.last]), labels.to(torch.int64)
            self.sums.index_add_(0, numbers, (unit / _STEP).round() * _STEP)
            self.counts.index_add_(0, numbers, torch.ones_like(numbers))
            self.squares += (unit.square().sum(dim=1) / _SQUARE_STEP).round().sum() * _SQUARE_STEP
        return self

    def add_sums(self, sums: Tensor, counts: Tensor) -> None:
        """Add so many unit vectors of each of the first classes, of which the sums are known."""
        self.sums[: len(sums)] += (sums.cpu() / _STEP).round() * _STEP
        self.counts[: len(counts)] += counts.cpu()
        self.squares += counts.sum().cpu()

    def with_classes(self, num_classes: int) -> Self:
        """A copy for so many classes, of which the further ones have no images yet."""
        logits, classifier = self.has_logits, self.classifier
        copied = type(self)(self.widths, num_classes, has_logits=logits, classifier=classifier)
        if not logits:
            copied.sums[: self.num_classes] = self.sums.cpu()
            copied.counts[: self.num_classes] = self.counts.cpu()
            copied.squares += self.squares.cpu()
        return copied

    def forward(self, inputs: dict[str, Tensor]) -> Outputs:
        features = {name: _rows_of(inputs, name, width) for name, width in self.widths.items()}
        if not self.has_logits:
            return Outputs(self._nearness(features[self.last]), features)
        logits = _rows_of(inputs, LOGITS, self.num_classes)
        traced = torch.compiler.is_compiling()
        return Outputs(logits, features, classifier=None if traced else self.classifier)

    def _nearness(self, features: Tensor) -> Tensor:
        counted = self.counts.clamp_min(1).to(torch.float64)
        means = self.sums / counted[:, None]
        lengths = means.square().sum(dim=1)
        within = self.squares - (counted * lengths).sum()
        variance = (within / (self.counts.sum() * means.shape[1])).clamp_min(1e-12)
        logits = (_unit(features) @ means.T - lengths / 2) / variance
        return torch.where(self.counts > 0, logits, NEVER).float()


def _rows_of(inputs: Mapping[str, Tensor], name: str, width: int) -> Tensor:
    if name not in inputs:
        raise unknown("feature", name, inputs)
    values = inputs[name]
    if values.ndim != 2 or values.shape[1] != width:
        raise UsageError(f"The feature {name} has shape (N, {width}), got {tuple(values.shape)}.")
    return values.float()


def _unit(features: Tensor) -> Tensor:
    return normalize(features.to(torch.float64), dim=1)


Features: TypeAlias = Outputs | Mapping[str, Array] | Array
"""``Outputs``, arrays ``(N, D)`` by name (``logits`` are the classifier's), or one array."""


def as_features(given: Features) -> dict[str, Array]:
    """The arrays by name; logits, if there are any, as ``logits``.

    Raises:
        UsageError: something that holds no features.
    """
    if isinstance(given, Outputs):
        return {**given.features, LOGITS: given.logits}
    if isinstance(given, (Tensor, np.ndarray)):
        return {FEATURES: given}
    known = isinstance(given, Mapping) and all(
        isinstance(part, (Tensor, np.ndarray)) for part in given.values()
    )
    if not known or not given:
        raise UsageError(
            "Features are Outputs, an array (N, D), or a dict of such arrays by name; got a "
            f"{type(given).__name__}."
        )
    return dict(given)


def renamed(parts: dict[str, Array], known: Collection[str]) -> dict[str, Array]:
    """The parts, of which an array without a name gets that of the only known feature."""
    names = [name for name in known if name != LOGITS]
    return {names[0]: parts[FEATURES]} if [*parts] == [FEATURES] and len(names) == 1 else parts
