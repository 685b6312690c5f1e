"""Networks that declare their scales, and their classifiers.

To add a backbone, see ``goen.models.backbone``. A model of another library needs none of this; see
``goen.features``.
"""

from collections.abc import Mapping

from goen.models.backbone import Architecture, Backbone, NetworkConfig, Representation, Scale
from goen.models.classifiers import CLASSIFIERS, Classifier, ClassifierKind
from goen.models.fast_cnn import FastCNN
from goen.models.resnet import ResNet18

ARCHITECTURES: Mapping[Architecture, type[ResNet18 | FastCNN]] = {
    "resnet18": ResNet18,
    "fast_cnn": FastCNN,
}


def new_network(config: NetworkConfig) -> Backbone:
    """The network of these settings, with random weights.

    Example:
        >>> import torch
        >>> network = new_network(NetworkConfig(num_classes=3, width=4))
        >>> network(torch.zeros(2, 3, 32, 32)).logits.shape
        torch.Size([2, 3])
    """
    return ARCHITECTURES[config.architecture](config)


__all__ = [
    "ARCHITECTURES",
    "CLASSIFIERS",
    "Architecture",
    "Backbone",
    "Classifier",
    "ClassifierKind",
    "FastCNN",
    "NetworkConfig",
    "Representation",
    "ResNet18",
    "Scale",
    "new_network",
]
