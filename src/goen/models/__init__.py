"""Networks that declare their scales, and their classifiers.

To add a backbone: a module beside ``resnet``, and the places that know one: ``training.backbone``
(trains it), ``studies.networks`` (loads it from a stage), ``gate._network`` (saves and loads it
with a gate) and ``gate.fit`` (takes its features as they are, without tapping). A model of another
library needs none of this; see ``goen.models.tapping``.
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
