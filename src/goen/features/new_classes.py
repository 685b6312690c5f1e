"""A classifier with classes that it was not trained on, by the nearest class mean."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from goen.batch import Inputs
from goen.features.precomputed import NEVER, Precomputed
from goen.outputs import Outputs


class WithNewClasses(nn.Module):
    """The outputs of a classifier of C classes, with logits for k new ones.

    An image whose feature is nearest to the mean of a new class has the logits of
    ``Precomputed`` for all classes, with the log-sum-exp of the classifier's. Any other image has
    those of the classifier, and no probability of a new class.

    Args:
        network: gives ``Outputs``.
        feature: the one that the means are of.
        width: of it.
        num_known: C.
        num_classes: C + k.

    Example:
        >>> known = Precomputed({"z": 2}, 2, has_logits=True)
        >>> network = WithNewClasses(known, "z", 2, 2, 3)
        >>> means = {"z": torch.tensor([[1.0, 0.1], [-1.0, 0.1], [0.0, 1.0]])}
        >>> rows = means | {"logits": torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]])}
        >>> network.add(means, torch.arange(3))(rows).logits.argmax(1)
        tensor([0, 1, 2])
    """

    def __init__(
        self, network: nn.Module, feature: str, width: int, num_known: int, num_classes: int
    ) -> None:
        super().__init__()
        self.network = network
        self.num_known = num_known
        self.means = Precomputed({feature: width}, num_classes, has_logits=False)

    @property
    def feature(self) -> str:
        """The one that the means are of."""
        return self.means.last

    @property
    def num_classes(self) -> int:
        """Those of the classifier, and the new ones."""
        return self.means.num_classes

    def with_classes(self, num_classes: int) -> Self:
        """The same classifier with a copy of the means, for so many classes."""
        width = self.means.widths[self.feature]
        copied = type(self)(self.network, self.feature, width, self.num_known, num_classes)
        copied.means = self.means.with_classes(num_classes)
        return copied

    def add(self, features: Mapping[str, Tensor], labels: Tensor) -> Self:
        """Add training images to the means of their classes."""
        self.means.add({self.feature: features[self.feature].cpu()}, labels.cpu())
        return self

    def forward(self, inputs: Inputs) -> Outputs:
        outputs: Outputs = self.network(inputs)
        logits = outputs.logits.float()
        near = self.means({self.feature: outputs.feature(self.feature)}).logits
        is_new = near.argmax(dim=1) >= self.num_known
        never = logits.new_full((1, self.num_classes - self.num_known), NEVER)
        padded = torch.cat([logits, never.expand(logits.shape[0], -1)], dim=1)
        of_means = near.log_softmax(dim=1) + logits.logsumexp(dim=1, keepdim=True)
        wider = torch.where(is_new[:, None], of_means, padded)
        return replace(outputs, logits=wider, classifier=None)
