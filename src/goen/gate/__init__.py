"""The gate: a network, a detector, and a threshold with a guarantee.

``gate.gate`` has the class, ``gate.base`` what it predicts and ``gate.decision`` the arithmetic;
``fitting``, ``storage`` and ``export`` make, keep and export gates.
"""

from goen.gate.bundled import DEFAULT_GATE, bundled_folder, bundled_gates
from goen.gate.fitting.update import UpdateReport
from goen.gate.gate import Gate, load
from goen.gate.prediction import Prediction, concatenate
from goen.gate.shift import DeclaredShift
from goen.gate.storage.saving import gate_folder
from goen.gate.threshold import HeldOut

__all__ = [
    "DEFAULT_GATE",
    "DeclaredShift",
    "Gate",
    "HeldOut",
    "Prediction",
    "UpdateReport",
    "bundled_folder",
    "bundled_gates",
    "concatenate",
    "gate_folder",
    "load",
]
