"""The smallest training worth the name."""

import torch

from goen.models import NetworkConfig, ResNet18
from goen.training import TrainingConfig

NETWORK = NetworkConfig(num_classes=3, width=1)
CONFIG = TrainingConfig(epochs=4, batch_size=16, learning_rate=0.05, padding=1)


def weights(network: ResNet18) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in network.state_dict().items()}


def same(a: ResNet18, b: ResNet18) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )
