"""The gate: a network, a detector, and a threshold with a guarantee.

The threshold is that of the held-out scores: ``HeldOut.threshold`` in ``held_out``, computed by
``goen.functional.conformal``.
"""

from goen.gate.bundled import DEFAULT_GATE, bundled_folder, bundled_gates
from goen.gate.fit_parts import partial_fit, partial_fit_outputs, partition_rows
from goen.gate.gate import Gate
from goen.gate.held_out import HeldOut, measure_rounding
from goen.gate.partial import PartialFit, merge
from goen.gate.prediction import Prediction, concatenate
from goen.gate.saving import gate_folder, load
from goen.gate.scorer import Scorer
from goen.gate.update import Change

__all__ = [
    "DEFAULT_GATE",
    "Change",
    "Gate",
    "HeldOut",
    "PartialFit",
    "Prediction",
    "Scorer",
    "bundled_folder",
    "bundled_gates",
    "concatenate",
    "gate_folder",
    "load",
    "measure_rounding",
    "merge",
    "partial_fit",
    "partial_fit_outputs",
    "partition_rows",
]
