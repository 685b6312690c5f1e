"""Training of the network, as a plain loop."""

from goen.training.backbone import EpochRow, TrainingConfig, help_training, train_backbone

__all__ = ["EpochRow", "TrainingConfig", "help_training", "train_backbone"]
