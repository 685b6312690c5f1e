"""Training of the network, as a plain loop."""

from goen.training.backbone import EpochRow, TrainingConfig, train_backbone

__all__ = ["EpochRow", "TrainingConfig", "train_backbone"]
