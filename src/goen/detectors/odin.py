"""ODIN: a step that makes the network surer, and a high temperature."""

from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from goen.checks import check_number
from goen.detectors._base import Detector
from goen.detectors._gradient import image_gradient
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
        one_value: move only the one input value of each image with the largest absolute gradient
            (i-ODIN).

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
        self,
        network: nn.Module,
        *,
        epsilon: float = EPSILON,
        temperature: float = TEMPERATURE,
        one_value: bool = False,
    ) -> None:
        super().__init__()
        self.network = network
        self.epsilon = epsilon
        self.temperature = temperature
        self.one_value = one_value
        _check_step(epsilon, temperature)

    def extra_repr(self) -> str:
        step = f"epsilon={self.epsilon}, temperature={self.temperature}"
        return f"{step}, one_value={self.one_value}"

    def forward(self, images: Tensor) -> Outputs:
        moved, outputs = self.move(images)
        with perturbed_by(self.epsilon):
            perturbed: Outputs = self.network(moved)
        logits = perturbed.logits.detach()
        return replace(outputs, features={**outputs.features, PERTURBED: logits})

    def move(self, images: Tensor) -> tuple[Tensor, Outputs]:
        """The moved images, floats around [0, 1], and the outputs of the images themselves."""
        pixels, gradient, outputs = image_gradient(self.network, images, self._loss, "ODIN")
        step = gradient.sign()
        if self.one_value:
            flat = gradient.flatten(1)
            place = flat.abs().argmax(dim=1, keepdim=True)
            only = torch.zeros_like(flat).scatter(1, place, 1.0)
            step = step * only.view_as(step)
        return pixels - self.epsilon * step, outputs

    def _loss(self, logits: Tensor) -> Tensor:
        return cross_entropy(logits / self.temperature, logits.argmax(1), reduction="sum")


def _check_step(epsilon: float, temperature: float) -> None:
    """Raise a ``UsageError`` unless this is a step in a [0, 1] pixel and a temperature."""
    check_number("epsilon", epsilon, at_least=0, below=1)
    check_number("temperature", temperature, above=0)


@final
class ODIN(Detector):
    r"""The largest softmax probability at a high temperature, of perturbed images; high for OOD.

    Scores the outputs of ``Perturbed(network)``:
    ``ODIN().score(extract(Perturbed(network), images))``. On the outputs of the network itself this
    is ODIN with a step of 0.

    Args:
        epsilon: the step; see ``Perturbed``.
        temperature: T, of the step and of the score.
        one_value: move only one input value of each image (i-ODIN); see ``Perturbed``.

    Paper: Liang, Li and Srikant 2018, as ``Perturbed``; with ``one_value``, i-ODIN, by the
    authors of ASCOOD (github sudarshanregmi/ASCOOD) and in OpenOOD.
    Departs from the paper: log((1 - p) / p) in float64 in place of 1 - p. At T = 1000 all p are
    nearly 1 / C, and tie in float32.

    Example:
        >>> ODIN().score(Outputs(torch.tensor([[0.0, 0.0], [4.0, 0.0]]), {}))
        tensor([ 0.0000, -0.0040], dtype=torch.float64)
    """

    name: ClassVar[str] = "odin"
    needs_fit = False
    needs_gradient = True

    def __init__(
        self,
        *,
        epsilon: float = EPSILON,
        temperature: float = TEMPERATURE,
        one_value: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.temperature = temperature
        self.one_value = one_value
        _check_step(epsilon, temperature)

    @property
    def features(self) -> tuple[str, ...]:
        return (PERTURBED,)

    def prepare_network(self, network: nn.Module) -> nn.Module:
        return Perturbed(
            network,
            epsilon=self.epsilon,
            temperature=self.temperature,
            one_value=self.one_value,
        )

    def _score(self, outputs: Outputs) -> Tensor:
        logits = outputs.features.get(PERTURBED, outputs.logits)
        check_several_classes(logits)
        return max_softmax_score(logits.to(torch.float64) / self.temperature)
