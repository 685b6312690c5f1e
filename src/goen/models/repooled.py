"""A network whose classifier reads the last feature map pooled in another way than in training."""

from typing import Literal

from torch import Tensor, nn

from goen.errors import UsageError
from goen.models.backbone import Backbone
from goen.models.pooling import pool
from goen.outputs import Outputs

Repooling = Literal["max", "mean_std"]
GAMMA = 1.0
"""DAVIS's γ for the energy of a ResNet-18 on CIFAR-10, by its authors' scripts."""


class Repooled(nn.Module):
    r"""Logits of a classifier that reads the maximum, or mean plus deviation, of the last map.

    ID images excite a channel in few places and strongly, OOD images everywhere and little; the
    mean, which most classifiers are trained on, hides the difference. The energy of these logits is
    the score of DAVIS: low energy where the peaks are high. A network that was trained on maxima,
    as the fast CNN, gains nothing by ``max``: its logits are the same.

    Paper: Hassan et al. 2026, "DAVIS: OOD Detection via Dominant Activations and Variance for
    Increased Separation" (arXiv 2601.22703): ``max`` and :math:`\mu + \gamma \sigma`. Departs from
    it: the variance is divided by the number of values, not one less; the energy alone, where the
    paper also puts ReAct, DICE, ASH and SCALE on these features.

    Args:
        network: whose classifier reads its last map (representation ``plain``).
        pooling: ``max``, or ``mean_std``: the mean and :math:`\gamma = 1` standard deviations.

    Raises:
        UsageError: a network with another representation.

    Example:
        >>> import torch
        >>> from goen.models import NetworkConfig, ResNet18
        >>> network = ResNet18(NetworkConfig(width=4, representation="plain")).eval()
        >>> Repooled(network, "max")(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).logits.shape
        torch.Size([2, 10])
    """

    def __init__(self, network: Backbone, pooling: Repooling) -> None:
        super().__init__()
        if network.config.representation != "plain":
            raise UsageError(
                "Only a classifier that reads the last map can read it pooled otherwise, got a "
                f"network with representation {network.config.representation}."
            )
        self.network = network
        self.pooling = pooling

    def forward(self, images: Tensor) -> Outputs:
        *_, last = self.network.maps(self.network._normalised(images))
        if self.pooling == "max":
            pooled = pool(last, "max")
        else:
            pooled = pool(last, "mean") + GAMMA * pool(last, "std")
        hidden, _ = self.network._represent(pooled, pooled)  # reads the second alone
        return Outputs(self.network.classifier.predict(hidden).logits, {})
