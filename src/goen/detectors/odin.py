"""ODIN: a step that makes the network surer, and a high temperature."""

from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from goen.checks import check_number
from goen.detectors._base import Detector
from goen.errors import UsageError
from goen.features.preprocess import perturbed_by
from goen.functional.logits import check_several_classes, max_softmax_score
from goen.outputs import Outputs

PERTURBED = "perturbed_logits"
"""The feature of ``Perturbed`` that holds the logits of the moved images."""
EPSILON = 0.0014
TEMPERATURE = 1000.0


@final
class Perturbed(nn.Module):
    r"""A network whose input moves a small step towards its predicted class.

    .. math:: \tilde x = x - \varepsilon \, \mathrm{sign}(-\nabla_x \log p_{\hat y}(x; T)),
              \qquad \hat y = \arg\max_c p_c

    ID images gain more from the step than OOD images. The outputs are those of the images, with the
    logits of the moved images as one more feature, which ``ODIN`` turns into a score. One forward,
    one backward and one more forward pass. Gradients are taken with respect to the images alone:
    the network's parameters, their gradients and its mode are left as they are. It works where
    gradients are switched off.

    Args:
        network: images to ``Outputs``; images are uint8, or floats in [0, 1].
        epsilon: the step in units of the [0, 1] pixel, before the network takes off any mean or
            divides by any standard deviation. 0.0014 is a third of a grey level.
        temperature: T, by which logits are divided before the softmax.

    Paper: Liang, Li and Srikant 2018, "Enhancing The Reliability of Out-of-distribution Image
    Detection in Neural Networks", equation 2.
    Departs from the paper: a pixel without gradient is not moved, where the paper's code takes the
    sign of 0 for +1. Moved pixels are not clipped to [0, 1], as in the paper: at pure black and
    white the step would be lost. A model in a ``FeatureExtractor`` therefore receives pixels
    of up to 1 + epsilon and down to -epsilon; the images given to ``Perturbed`` lie in [0, 1].

    Example:
        >>> class Linear(nn.Module):
        ...     def forward(self, x: Tensor) -> Outputs:
        ...         return Outputs(x.flatten(1) @ torch.tensor([[2.0, 0.0], [0.0, 1.0]]), {})
        >>> image = torch.tensor([[[[0.5, 0.5]]]])  # seen as class 0: a pixel up, a pixel down
        >>> Perturbed(Linear(), epsilon=0.25)(image).features["perturbed_logits"]
        tensor([[1.5000, 0.2500]])
    """

    def __init__(
        self, network: nn.Module, *, epsilon: float = EPSILON, temperature: float = TEMPERATURE
    ) -> None:
        super().__init__()
        self.network = network
        self.epsilon = epsilon
        self.temperature = temperature
        _check_step(epsilon, temperature)

    def forward(self, images: Tensor) -> Outputs:
        moved, outputs = self.move(images)
        with perturbed_by(self.epsilon):
            perturbed: Outputs = self.network(moved)
        logits = perturbed.logits.detach()
        return replace(outputs, features={**outputs.features, PERTURBED: logits})

    def move(self, images: Tensor) -> tuple[Tensor, Outputs]:
        """The moved images, floats around [0, 1], and the outputs of the images themselves."""
        if not isinstance(images, Tensor):
            raise UsageError(
                "ODIN moves the input of a network by its gradient, and needs one tensor, such as "
                f"images, not features or several inputs ({type(images).__name__}). Choose another "
                "detector."
            )
        with torch.inference_mode(False), torch.enable_grad():
            # A copy, since what was made in inference mode cannot have a gradient.
            pixels = _as_floats(images.detach().clone()).requires_grad_()
            outputs: Outputs = self.network(pixels)
            logits = outputs.logits
            if not logits.requires_grad:
                raise UsageError(
                    f"ODIN needs the gradient of {type(self.network).__name__}'s logits with "
                    "respect to the images, and they are cut off from it. Is there a no_grad, an "
                    "inference_mode or a detach in its forward?"
                )
            # The sum, so that no image's gradient depends on how many are beside it.
            loss = cross_entropy(logits / self.temperature, logits.argmax(1), reduction="sum")
            (gradient,) = torch.autograd.grad(loss, pixels)
        features = {name: values.detach() for name, values in outputs.features.items()}
        outputs = replace(outputs, logits=logits.detach(), features=features)
        return pixels.detach() - self.epsilon * gradient.sign(), outputs


def _check_step(epsilon: float, temperature: float) -> None:
    """Raise a ``UsageError`` unless this is a step in a [0, 1] pixel and a temperature."""
    check_number("epsilon", epsilon, at_least=0, below=1)
    check_number("temperature", temperature, above=0)


def _as_floats(images: Tensor) -> Tensor:
    if images.dtype in (torch.uint8, torch.uint16):
        return images.to(torch.get_default_dtype()) / torch.iinfo(images.dtype).max
    if not images.is_floating_point():
        raise UsageError(f"Images are uint8, uint16, or floats in [0, 1], got {images.dtype}.")
    return images


@final
class ODIN(Detector):
    r"""The largest softmax probability at a high temperature, of perturbed images; high for OOD.

    Scores the outputs of ``Perturbed(network)``:
    ``ODIN().score(extract(Perturbed(network), images))``. On the outputs of the network itself this
    is ODIN with a step of 0.

    Args:
        epsilon: the step; see ``Perturbed``.
        temperature: T, of the step and of the score.

    Paper: Liang, Li and Srikant 2018, as ``Perturbed``.
    Departs from the paper: log((1 - p) / p) in float64 in place of 1 - p. At T = 1000 all p are
    nearly 1 / C, and tie in float32.

    Example:
        >>> ODIN().score(Outputs(torch.tensor([[0.0, 0.0], [4.0, 0.0]]), {}))
        tensor([ 0.0000, -0.0040], dtype=torch.float64)
    """

    name: ClassVar[str] = "odin"
    needs_fit = False
    needs_gradient = True

    def __init__(self, *, epsilon: float = EPSILON, temperature: float = TEMPERATURE) -> None:
        self.epsilon = epsilon
        self.temperature = temperature
        _check_step(epsilon, temperature)

    @property
    def features(self) -> tuple[str, ...]:
        return (PERTURBED,)

    def prepare_network(self, network: nn.Module) -> nn.Module:
        return Perturbed(network, epsilon=self.epsilon, temperature=self.temperature)

    def _score(self, outputs: Outputs) -> Tensor:
        logits = outputs.features.get(PERTURBED, outputs.logits)
        check_several_classes(logits)
        return max_softmax_score(logits.to(torch.float64) / self.temperature)
