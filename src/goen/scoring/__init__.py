"""The gate: a network, a scorer, and a threshold with a guarantee."""

from goen.detectors.goen import score_cues
from goen.scoring.gate import Gate
from goen.scoring.loading import load
from goen.scoring.prediction import Prediction, concatenate
from goen.scoring.update import Change

__all__ = ["Change", "Gate", "Prediction", "concatenate", "load", "score_cues"]
