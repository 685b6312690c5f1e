"""Detectors: ``Outputs`` in, scores out; a high score means OOD.

To add one: a module here with a subclass of ``Detector``, and its name below and in ``DETECTORS``.
Then every command can use it. ``docs/methods/adding.md`` shows how.
"""

from goen.detectors._bank import NearestImages
from goen.detectors._base import Detector
from goen.detectors.energy import Energy
from goen.detectors.fdbd import FDBD
from goen.detectors.gen import GEN
from goen.detectors.goen import Goen
from goen.detectors.goen_m import GoenM
from goen.detectors.knn import KNN
from goen.detectors.mahalanobis import Mahalanobis
from goen.detectors.masf import MaSF
from goen.detectors.max_logit import MaxLogit
from goen.detectors.max_softmax import MaxSoftmax
from goen.detectors.multilayer_mahalanobis import MultilayerMahalanobis
from goen.detectors.odin import ODIN, Perturbed
from goen.detectors.pytorch_ood import PytorchOod
from goen.detectors.react import ReAct
from goen.detectors.registry import DETECTORS, load_detector, make_detector
from goen.detectors.relative_mahalanobis import RelativeMahalanobis
from goen.detectors.temperature_scaling import TemperatureScaling
from goen.detectors.uncertainty import Uncertainty
from goen.detectors.vim import ViM

__all__ = [
    "DETECTORS",
    "FDBD",
    "GEN",
    "KNN",
    "ODIN",
    "Detector",
    "Energy",
    "Goen",
    "GoenM",
    "MaSF",
    "Mahalanobis",
    "MaxLogit",
    "MaxSoftmax",
    "MultilayerMahalanobis",
    "NearestImages",
    "Perturbed",
    "PytorchOod",
    "ReAct",
    "RelativeMahalanobis",
    "TemperatureScaling",
    "Uncertainty",
    "ViM",
    "load_detector",
    "make_detector",
]
