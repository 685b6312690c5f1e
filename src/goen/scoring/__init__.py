"""The gate: a network, a scorer, and a threshold with a guarantee."""

from goen.detectors.goen import score_cues
from goen.scoring.gate import Gate
from goen.scoring.loading import gate_folder, load
from goen.scoring.prediction import Prediction, concatenate
from goen.scoring.shipped import DEFAULT_GATE, shipped_folder
from goen.scoring.update import Change

__all__ = [
    "DEFAULT_GATE",
    "Change",
    "Gate",
    "Prediction",
    "concatenate",
    "gate_folder",
    "load",
    "score_cues",
    "shipped_folder",
]
