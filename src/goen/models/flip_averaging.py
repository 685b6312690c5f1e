"""Horizontal-flip averaging: the mean of a network's outputs for an image and its mirror image."""

import torch
from torch import Tensor, nn

from goen.errors import UsageError
from goen.outputs import Outputs


class FlipAveraged(nn.Module):
    """Logits and features of an image and of its mirror image, averaged.

    The outputs of a network depend a little on which way an object faces; the mean does not. It
    costs a second pass. Not for classes that a flip changes, such as digits.

    Paper: none; a common refinement, as in Krizhevsky et al. 2012, who average probabilities.

    Args:
        network: gives ``Outputs`` without its own uncertainty estimate.

    Example:
        >>> import torch
        >>> from goen.models import NetworkConfig, ResNet18
        >>> network = FlipAveraged(ResNet18(NetworkConfig(width=4))).eval()
        >>> image = torch.arange(3 * 32 * 32).view(1, 3, 32, 32) / (3 * 32 * 32)
        >>> torch.allclose(network(image).logits, network(image.flip(3)).logits)
        True
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Outputs:
        if images.dtype == torch.uint16:  # which torch cannot flip
            images = images.float() / 65535
        one: Outputs = self.network(images)
        other: Outputs = self.network(images.flip(3))
        if one.uncertainty is not None:
            raise UsageError(
                "This network provides its own uncertainty estimate, which cannot be averaged over "
                "flips: use it without flip averaging."
            )
        features = {name: (one.features[name] + other.features[name]) / 2 for name in one.features}
        # A mean of logits that are linear in features is linear in the mean of these.
        return Outputs((one.logits + other.logits) / 2, features, classifier=one.classifier)
