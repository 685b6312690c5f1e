"""The gate: a network, a scorer, and a threshold with a guarantee."""

from goen.detectors.goen import score_cues
from goen.gate.bundled import DEFAULT_GATE, shipped_folder
from goen.gate.gate import Gate
from goen.gate.prediction import Prediction, concatenate
from goen.gate.saving import gate_folder, load
from goen.gate.update import Change

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
