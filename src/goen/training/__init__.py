"""Stage 1 (the network) and stage 3 (the calibration head), as plain loops."""

from goen.training.backbone import EpochRow, TrainingConfig, train_backbone
from goen.training.head import HeadConfig, train_head

__all__ = ["EpochRow", "HeadConfig", "TrainingConfig", "train_backbone", "train_head"]
