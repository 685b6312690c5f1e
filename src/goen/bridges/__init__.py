"""A gate in the clothes of other libraries."""

from goen.bridges.pytorch_ood_style import GateDetector
from goen.bridges.sklearn_style import GateEstimator

__all__ = ["GateDetector", "GateEstimator"]
