"""Networks that declare their scales, and their classifiers.

To add a backbone: a module beside ``resnet``, and the three places that build one:
``training.backbone`` (trains it), ``studies.networks`` (loads it from a stage) and
``gate._network`` (saves and loads it with a gate). A model of another library needs none of this;
see ``goen.models.tapping``.
"""

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
