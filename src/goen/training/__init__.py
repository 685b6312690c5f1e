"""Training of the network as a plain loop, and a linear classifier on a pretrained one."""

from goen.training.backbone import PATIENCE, EpochRow, help_training, train_backbone
from goen.training.config import TrainingConfig
from goen.training.fine_tuning import FineTuning, fine_tune
from goen.training.probe import Probe, fit_probe

__all__ = [
    "PATIENCE",
    "EpochRow",
    "FineTuning",
    "Probe",
    "TrainingConfig",
    "fine_tune",
    "fit_probe",
    "help_training",
    "train_backbone",
]
