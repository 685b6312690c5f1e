"""ResNet-18 for small images, and the four representations that the paper compares.

Another backbone is a module beside this one; ``goen.models`` lists the places that build one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, relu

from goen.errors import UsageError, unknown
from goen.models.classifiers import CLASSIFIERS, ClassifierKind
from goen.outputs import Outputs

Representation = Literal["multi_scale", "single_scale", "concat", "plain"]
REPRESENTATIONS: tuple[Representation, ...] = ("multi_scale", "single_scale", "concat", "plain")

# The paper's figures. Its standard deviation is not CIFAR-10's (0.2470, 0.2435, 0.2616), but it is
# what the paper trained with.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class NetworkConfig:
    """What a ``ResNet18`` is built from.

    Attributes:
        num_classes: classes of the classifier.
        width: channels of the first stage; the paper's network has 64.
        representation: of an image, which the classifier and the detectors read:
            ``multi_scale`` (the paper's text: pooled layer2 and layer4, concatenated, projected
            to z), ``single_scale`` (the same on layer4 alone), ``concat`` (the paper's figure: no
            projection, each scale normalised apart), ``plain`` (an ordinary ResNet-18).
        mean: subtracted from each channel of the image in [0, 1].
        std: then divided by.
        classifier: ``linear`` (softmax), or a method with its own uncertainty estimate:
            ``dropout``, ``evidential``, ``epinet``, ``experts``; see ``goen.models.classifiers``.
    """

    num_classes: int = 10
    width: int = 64
    representation: Representation = "multi_scale"
    mean: tuple[float, float, float] = CIFAR10_MEAN
    std: tuple[float, float, float] = CIFAR10_STD
    classifier: ClassifierKind = "linear"

    def __post_init__(self) -> None:
        if self.num_classes < 1 or self.width < 1:
            raise UsageError(
                f"A network needs at least one class and width 1, got {self.num_classes} classes "
                f"and width {self.width}."
            )
        if self.representation not in REPRESENTATIONS:
            raise unknown("representation", self.representation, REPRESENTATIONS)
        if self.classifier not in CLASSIFIERS:
            raise unknown("classifier", self.classifier, CLASSIFIERS)

    def to_json(self) -> dict[str, Any]:
        """The settings as manifests and stage keys have them: the representation is ``head``."""
        settings = asdict(self)
        return {"head" if k == "representation" else k: v for k, v in settings.items()}

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        return cls(**{"representation" if k == "head" else k: v for k, v in settings.items()})


@dataclass(frozen=True)
class Scale:
    """One place where features are taken: its name, its channels, how many pixels it steps over."""

    name: str
    channels: int
    stride: int


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return relu(out, inplace=True)


class ResNet18(nn.Module):
    """Images ``(N, 3, H, W)`` to ``Outputs``: logits, pooled stages, z, uncertainty.

    Images are uint8, or floats in [0, 1]. The stem is a 3×3 convolution of stride 1 without
    pooling, as for 32×32 images. ``z`` is what the classifier and the detectors read; see
    ``NetworkConfig.representation`` for what it is made of.

    Paper: §4.1 and §5.1.
    Departs from the paper: with ``concat`` the classifier reads the two pooled scales as they are,
    and only the detectors read them normalised: the figure leaves it open, and unit-length inputs
    would bound the logits.

    Example:
        >>> network = ResNet18(NetworkConfig(width=4)).eval()
        >>> outputs = network(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
        >>> outputs.logits.shape, outputs.features["z"].shape
        (torch.Size([2, 10]), torch.Size([2, 32]))
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        # Channels-last is a quarter faster, but on the CPU the backward pass of torch 2.13 writes
        # outside its buffers when layers are narrower than a vector register (docs/log.md,
        # 2026-11-15): only multiples of the widest register's sixteen floats may have it.
        narrow = config.width % 16 != 0
        self._layout = torch.contiguous_format if narrow else torch.channels_last
        widths = [config.width * 2**stage for stage in range(4)]
        self.scales = tuple(
            Scale(f"layer{stage + 1}", channels, 2**stage) for stage, channels in enumerate(widths)
        )
        self.register_buffer("mean", torch.tensor(config.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(config.std).view(1, 3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, config.width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(config.width)
        stages, inputs = [], config.width
        for stage, outputs in enumerate(widths):
            first = Block(inputs, outputs, stride=1 if stage == 0 else 2)
            stages.append(nn.Sequential(first, Block(outputs, outputs, 1)))
            inputs = outputs
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        pooled = {
            "multi_scale": widths[1] + widths[3],
            "single_scale": widths[3],
            "concat": widths[1] + widths[3],
            "plain": widths[3],
        }[config.representation]
        self.projection: nn.Module | None = None
        if config.representation in ("multi_scale", "single_scale"):
            self.projection = nn.Sequential(
                nn.Linear(pooled, widths[3]), nn.BatchNorm1d(widths[3]), nn.ReLU()
            )
            pooled = widths[3]
        self.z_width = pooled
        self.classifier = CLASSIFIERS[config.classifier](pooled, config.num_classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                module.weight.data = module.weight.data.contiguous(memory_format=self._layout)

    def forward(self, images: Tensor) -> Outputs:
        hidden, features = self.encode(images)
        prediction = self.classifier.predict(hidden)
        return Outputs(prediction.logits, features, prediction.uncertainty)

    def encode(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The classifier's input ``(N, D)``, and the features by name."""
        white = 255.0 if images.dtype == torch.uint8 else 1.0
        x = images.to(dtype=self.mean.dtype, memory_format=self._layout)
        x = (x - self.mean * white) / (self.std * white)
        x = relu(self.bn1(self.conv1(x)), inplace=True)
        features = {}
        for scale in self.scales:
            x = self.get_submodule(scale.name)(x)
            features[scale.name] = x.mean((2, 3))
        hidden, z = self._represent(features["layer2"], features["layer4"])
        return hidden, {**features, "z": z}

    def _represent(self, texture: Tensor, semantics: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the classifier, and z, the input of the detectors."""
        if self.config.representation == "concat":
            apart = [normalize(texture), normalize(semantics)]
            return torch.cat([texture, semantics], 1), torch.cat(apart, 1)
        multi = self.config.representation == "multi_scale"
        hidden = torch.cat([texture, semantics], 1) if multi else semantics
        if self.projection is not None:
            hidden = self.projection(hidden)
        return hidden, hidden
