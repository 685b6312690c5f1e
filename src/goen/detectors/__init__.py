"""Detectors: ``Outputs`` in, scores out; a high score means OOD."""

from goen.detectors._base import Detector
from goen.detectors.density import Density
from goen.detectors.energy import Energy
from goen.detectors.fdbd import FDBD
from goen.detectors.gen import GEN
from goen.detectors.knn import KNN
from goen.detectors.mahalanobis import Mahalanobis
from goen.detectors.max_logit import MaxLogit
from goen.detectors.max_softmax import MaxSoftmax
from goen.detectors.odin import ODIN, Perturbed
from goen.detectors.react import ReAct
from goen.detectors.relative_mahalanobis import RelativeMahalanobis
from goen.detectors.temperature_scaling import TemperatureScaling
from goen.detectors.uncertainty import Uncertainty
from goen.detectors.vim import ViM

__all__ = [
    "FDBD",
    "GEN",
    "KNN",
    "ODIN",
    "Density",
    "Detector",
    "Energy",
    "Mahalanobis",
    "MaxLogit",
    "MaxSoftmax",
    "Perturbed",
    "ReAct",
    "RelativeMahalanobis",
    "TemperatureScaling",
    "Uncertainty",
    "ViM",
]
