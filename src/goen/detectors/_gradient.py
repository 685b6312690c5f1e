"""The gradient of a network by its images, for methods that move them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from goen.errors import UsageError
from goen.outputs import Outputs

# Pixels of the images that are in a backward pass together: 32 images of 128×128. The network's
# activations are kept until then, and a pretrained network has 30 MB of them for such an image.
_AT_ONCE = 32 * 128 * 128


def image_gradient(
    network: nn.Module, images: Tensor, objective: Callable[[Tensor], Tensor], method: str
) -> tuple[Tensor, Tensor, Outputs]:
    """The images as floats, the gradient of an objective by them, and the images' outputs.

    Large images are taken a few at a time, so that memory does not grow with the batch.
    Gradients are taken with respect to the images alone: the network's parameters, their gradients
    and its mode are left as they are. It works where gradients are switched off.

    Args:
        network: images to ``Outputs``.
        images: uint8, or floats in [0, 1].
        objective: a number from logits ``(N, C)``, a sum over images, so that no image's gradient
            depends on how many are beside it.
        method: its name, for errors.

    Raises:
        UsageError: inputs that are no images, or a network that cuts gradients off.
    """
    if not isinstance(images, Tensor):
        raise UsageError(
            f"{method} moves the input of a network by its gradient, and needs one tensor, such as "
            f"images, not features or several inputs ({type(images).__name__}). Choose another "
            "detector."
        )
    with torch.inference_mode(False), torch.enable_grad():
        # A copy, since what was made in inference mode cannot have a gradient.
        pixels = _as_floats(images.detach().clone())
        count = max(1, _AT_ONCE // max(1, pixels.shape[-2:].numel()))
        parts = [_gradient(network, part, objective, method) for part in torch.split(pixels, count)]
    gradients, outputs = zip(*parts, strict=True)
    return pixels, torch.cat(gradients), Outputs.concatenate(outputs)


def _gradient(
    network: nn.Module, pixels: Tensor, objective: Callable[[Tensor], Tensor], method: str
) -> tuple[Tensor, Outputs]:
    """The gradient by these images, and their outputs without what a backward pass needs."""
    pixels = pixels.detach().requires_grad_()
    outputs: Outputs = network(pixels)
    if not outputs.logits.requires_grad:
        raise UsageError(
            f"{method} needs the gradient of {type(network).__name__}'s logits with "
            "respect to the images, and they are cut off from it. Is there a no_grad, an "
            "inference_mode or a detach in its forward?"
        )
    (gradient,) = torch.autograd.grad(objective(outputs.logits), pixels)
    features = {name: values.detach() for name, values in outputs.features.items()}
    return gradient, replace(outputs, logits=outputs.logits.detach(), features=features)


def _as_floats(images: Tensor) -> Tensor:
    if images.dtype in (torch.uint8, torch.uint16):
        return images.to(torch.get_default_dtype()) / torch.iinfo(images.dtype).max
    if not images.is_floating_point():
        raise UsageError(f"Images are uint8, uint16, or floats in [0, 1], got {images.dtype}.")
    return images
