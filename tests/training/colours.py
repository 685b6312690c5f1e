"""The smallest training worth the name."""

import dataclasses

import torch

from goen.models import Backbone, NetworkConfig
from goen.training import TrainingConfig

NETWORK = NetworkConfig(num_classes=3, width=1)
CONFIG = TrainingConfig(epochs=4, batch_size=16, learning_rate=0.05, padding=1)
FAST = dataclasses.replace(
    CONFIG,
    schedule="triangle",
    norm_bias_rate=8.0,
    look_ahead=3,
    early_epochs=2,
    cutout=4,
    flip="alternating",
)


def weights(network: Backbone) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in network.state_dict().items()}


def same(a: Backbone, b: Backbone) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )
