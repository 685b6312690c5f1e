"""The predictive methods as classifiers on shared features, one file each."""

from typing import Literal

from goen.models.classifiers.classifier import Classifier, ClassifierOutput
from goen.models.classifiers.dropout import MCDropout
from goen.models.classifiers.epinet import EpiNet
from goen.models.classifiers.evidential import Evidential
from goen.models.classifiers.experts import MixtureOfExperts
from goen.models.classifiers.linear import LinearClassifier

ClassifierKind = Literal["linear", "dropout", "evidential", "epinet", "experts"]
CLASSIFIERS: dict[ClassifierKind, type[Classifier]] = {
    "linear": LinearClassifier,
    "dropout": MCDropout,
    "evidential": Evidential,
    "epinet": EpiNet,
    "experts": MixtureOfExperts,
}

__all__ = [
    "CLASSIFIERS",
    "Classifier",
    "ClassifierKind",
    "ClassifierOutput",
    "EpiNet",
    "Evidential",
    "LinearClassifier",
    "MCDropout",
    "MixtureOfExperts",
]
