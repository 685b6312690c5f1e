"""Detectors: ``Outputs`` in, scores out; a high score means OOD.

To add one: a module here with a subclass of ``SimpleDetector``, its name below, and a row in
``goen.studies.methods``, which is what ``goen bench`` compares. A detector for gates is a
``CueDetector`` and is listed in ``goen.gate.saving`` as well. The cues of goen-m are in ``goen_m``.
"""

from goen.detectors._bank import NearestImages
from goen.detectors._base import CueDetector, Detector, SimpleDetector
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
from goen.detectors.relative_mahalanobis import RelativeMahalanobis
from goen.detectors.temperature_scaling import TemperatureScaling
from goen.detectors.uncertainty import Uncertainty
from goen.detectors.vim import ViM

__all__ = [
    "FDBD",
    "GEN",
    "KNN",
    "ODIN",
    "CueDetector",
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
    "SimpleDetector",
    "TemperatureScaling",
    "Uncertainty",
    "ViM",
]
