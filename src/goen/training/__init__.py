"""Training of the network, as a plain loop."""

from goen.training.backbone import PATIENCE, EpochRow, help_training, train_backbone
from goen.training.config import TrainingConfig

__all__ = ["PATIENCE", "EpochRow", "TrainingConfig", "help_training", "train_backbone"]
