"""Networks that declare their scales, and their classifiers."""

from goen.models.classifiers import CLASSIFIERS, Classifier, ClassifierKind
from goen.models.resnet import NetworkConfig, Representation, ResNet18, Scale

__all__ = [
    "CLASSIFIERS",
    "Classifier",
    "ClassifierKind",
    "NetworkConfig",
    "Representation",
    "ResNet18",
    "Scale",
]
