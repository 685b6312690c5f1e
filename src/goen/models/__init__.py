"""Networks that declare their scales, and their classifiers."""

from goen.models.classifiers import CLASSIFIERS, Classifier, ClassifierKind
from goen.models.resnet import NetworkConfig, ResNet18, Scale

__all__ = ["CLASSIFIERS", "Classifier", "ClassifierKind", "NetworkConfig", "ResNet18", "Scale"]
