"""Networks that declare their scales."""

from goen.models.resnet import NetworkConfig, ResNet18, Scale

__all__ = ["NetworkConfig", "ResNet18", "Scale"]
