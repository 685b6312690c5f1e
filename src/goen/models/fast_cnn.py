"""A small convolutional network that trains in a few epochs."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, max_pool2d, unfold

from goen.errors import UsageError
from goen.models.backbone import Backbone, NetworkConfig, Scale

PATCH = 2
# Of the whitening: small eigenvalues are noise, which it would amplify.
_RIDGE = 5e-4
# Of the classifier's input. Its weights start with a standard deviation of 1.
_SCALE = 1 / 9


class ConvBlock(nn.Module):
    """Convolution, max-pooling, batch norm, GELU, convolution, batch norm, GELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1 = _batch_norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = _batch_norm(outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The map after the first convolution, and that after the block."""
        first = self.conv1(x)
        x = gelu(self.bn1(max_pool2d(first, 2)))
        return first, gelu(self.bn2(self.conv2(x)))


class FastCNN(Backbone):
    """A frozen whitening of 2×2 patches, then three blocks of w, 4w and 4w channels.

    Source: the facts of Jordan, 94% on CIFAR-10 in 3.29 seconds on a single GPU (2024), whose
    network has width 64. Whitening makes the channels of the first layer uncorrelated with equal
    variance; the filters start as the identity, the weights of the batch norms stay at 1.
    Departs from it: the classifier has a bias, and settings follow ``NetworkConfig``.

    Example:
        >>> network = FastCNN(NetworkConfig(width=4, architecture="fast_cnn")).eval()
        >>> outputs = network(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
        >>> outputs.logits.shape, list(outputs.features)
        (torch.Size([2, 10]), ['block1', 'block2', 'block3.conv1', 'block3', 'z'])
    """

    middle = "block2"

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        w = config.width
        if config.representation == "plain":
            self.classifier_scale *= _SCALE
        self.scales = (
            Scale("block1", w, 2, "mean_abs"),
            Scale("block2", 4 * w, 4, "max"),
            Scale("block3.conv1", 4 * w, 4, "mean_abs"),
            Scale("block3", 4 * w, 8, "max"),
        )
        patches = config.channels * PATCH**2
        self.whitening = nn.Conv2d(config.channels, 2 * patches, PATCH)
        self.whitening.weight.requires_grad = False
        nn.init.zeros_(self.whitening.bias)  # type: ignore[arg-type]
        self.block1 = ConvBlock(2 * patches, w)
        self.block2 = ConvBlock(w, 4 * w)
        self.block3 = ConvBlock(4 * w, 4 * w)
        self._add_classifier()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                if module is not self.whitening:
                    nn.init.dirac_(module.weight[: module.in_channels])
                module.weight.data = module.weight.data.contiguous(memory_format=self._layout)
        if config.representation == "plain" and isinstance(self.classifier, nn.Linear):
            self.classifier.weight.data /= self.classifier.weight.data.std()
        self._add_rotations()

    def maps(self, x: Tensor) -> Iterator[Tensor]:
        if min(x.shape[2:]) < 8 + PATCH - 1:
            raise UsageError(
                f"This network needs images of {8 + PATCH - 1} pixels or more, got "
                f"{x.shape[2]}×{x.shape[3]}."
            )
        x = gelu(self.whitening(x))
        yield (x := self.block1(x)[1])
        yield (x := self.block2(x)[1])
        first, last = self.block3(x)
        yield first
        yield last

    def prepare(self, images: Tensor) -> None:
        """Whiten the 2×2 patches of these images: each eigenvector over the root of its variance.

        Both signs of each, since the GELU passes one.
        """
        with torch.no_grad():
            rows = unfold(self._normalised(images), PATCH).transpose(1, 2).flatten(0, 1)
            # In double, so that the filters are the same on every processor up to rounding.
            second_moments = rows.double().T @ rows.double() / len(rows)
            variances, vectors = torch.linalg.eigh(second_moments)
            # An eigenvector has no sign of its own: the largest entry is positive.
            largest = vectors.abs().argmax(0, keepdim=True)
            vectors = vectors * vectors.gather(0, largest).sign()
            filters = (vectors / (variances + _RIDGE).sqrt()).T.view(
                -1, self.config.channels, PATCH, PATCH
            )
            self.whitening.weight.copy_(torch.cat([filters, -filters]))

    def early_parameters(self) -> list[nn.Parameter]:
        """The bias of the whitening: without it no gradient has to reach the first block."""
        return [self.whitening.get_parameter("bias")]


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad = False
    return norm
