"""What every backbone has: its settings, its scales, a representation and a classifier.

To add a backbone: a module beside ``resnet`` with a subclass of ``Backbone``, and its name in
``Architecture`` and in ``goen.models.ARCHITECTURES``.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from goen.checks import check_choice, check_number
from goen.errors import UsageError
from goen.models.classifiers import CLASSIFIERS, Classifier, ClassifierKind
from goen.models.pooling import Pooling, pool
from goen.outputs import LinearClassifier, Outputs

Architecture = Literal["resnet18", "fast_cnn"]
Representation = Literal["multi_scale", "single_scale", "concat", "plain"]
REPRESENTATIONS: tuple[Representation, ...] = get_args(Representation)

# The paper's figures. Its standard deviation is not CIFAR-10's (0.2470, 0.2435, 0.2616), but it is
# what the paper trained with.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)
_WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}
STEM_STRIDES = (1, 2, 4)
_LEFT_OUT = ("architecture", "stem_stride", "temperature", "rotations")
TURNS = 4
"""The rotations of an image by right angles, none among them."""


@dataclass(frozen=True)
class NetworkConfig:
    """What a network is built from.

    Attributes:
        num_classes: classes of the classifier.
        width: channels of the first stage; 64 in the paper's network, and in the fast one.
        representation: of an image, which the classifier and the detectors read:
            ``multi_scale`` (the paper's text: a middle and the last scale, layer2 and layer4 of
            the ResNet-18, pooled, concatenated, projected to z), ``single_scale`` (the same on the
            last alone), ``concat`` (the paper's figure: no projection, each scale normalised
            apart), ``plain`` (an ordinary network: the last scale).
        mean: subtracted from each channel of the image in [0, 1]; as many as the images have.
        std: then divided by.
        classifier: ``linear`` (softmax), or a method with its own uncertainty estimate:
            ``dropout``, ``evidential``, ``epinet``, ``experts``; see ``goen.models.classifiers``.
        architecture: ``resnet18``, the paper's, or ``fast_cnn``; see ``goen.models``.
        stem_stride: by how much the first layers of the ResNet-18 shrink an image: 1 in the
            paper's, for 32 pixels; 2 or 4, as for ImageNet, for larger images.
        temperature: by which z is divided before the classifier reads it; T2FNorm's is 0.1, see
            ``TrainingConfig.feature_norm``.
        rotations: whether it has a second classifier, for the four rotations of an image; see
            ``TrainingConfig.rotation_loss`` and ``Rotated``.
    """

    num_classes: int = 10
    width: int = 64
    representation: Representation = "multi_scale"
    mean: tuple[float, ...] = CIFAR10_MEAN
    std: tuple[float, ...] = CIFAR10_STD
    classifier: ClassifierKind = "linear"
    architecture: Architecture = "resnet18"
    stem_stride: int = 1
    temperature: float = 1.0
    rotations: bool = False

    def __post_init__(self) -> None:
        check_number("num_classes", self.num_classes, whole=True, at_least=1)
        check_number("width", self.width, whole=True, at_least=1)
        check_choice("representation", self.representation, REPRESENTATIONS)
        check_choice("classifier", self.classifier, CLASSIFIERS)
        check_choice("architecture", self.architecture, get_args(Architecture))
        if not len(self.mean) == len(self.std) >= 1:
            raise UsageError(
                "mean and std must have a number for each channel of the images; got "
                f"{self.mean} and {self.std}."
            )
        strides = STEM_STRIDES if self.architecture == "resnet18" else (1,)
        if self.stem_stride not in strides:
            raise UsageError(
                f"The stem of {self.architecture} has a stride of "
                f"{' or '.join(map(str, strides))}; got {self.stem_stride}."
            )
        check_number("temperature", self.temperature, above=0)
        if self.temperature != 1 and self.representation == "concat":
            raise UsageError("With concat the classifier does not read z: temperature must be 1.")
        for mean, std in zip(self.mean, self.std, strict=True):
            check_number("Each mean", mean)
            check_number("Each std", std, above=0)

    @property
    def channels(self) -> int:
        """Of the images."""
        return len(self.mean)

    def to_json(self) -> dict[str, Any]:
        """The settings as manifests and stage keys have them: the representation is ``head``.

        What most networks do not have is left out where it is the paper's, as in files from before
        it had a name.
        """
        usual = {f.name: f.default for f in fields(self) if f.name in _LEFT_OUT}
        settings = {k: v for k, v in asdict(self).items() if k not in usual or v != usual[k]}
        return {"head" if k == "representation" else k: v for k, v in settings.items()}

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        return cls(**{"representation" if k == "head" else k: v for k, v in settings.items()})


@dataclass(frozen=True)
class Scale:
    """One place where features are taken: its name, channels, stride in pixels, and its pooling."""

    name: str
    channels: int
    stride: int
    pooling: Pooling = "mean"


class Backbone(nn.Module):
    """Images ``(N, C, H, W)`` to ``Outputs``: logits, pooled scales, z, uncertainty.

    Images are uint8, uint16, or floats in [0, 1]. ``z`` is what the classifier and the detectors
    read; see ``NetworkConfig.representation`` for what it is made of. A subclass builds its layers,
    declares its ``scales`` and calls ``_add_classifier``.

    Departs from the paper: with ``concat`` the classifier reads the two pooled scales as they are,
    and only the detectors read them normalised: the figure leaves it open, and unit-length inputs
    would bound the logits.

    Attributes:
        config: its settings.
        scales: where features are taken, from the image to the classifier.
        middle: the scale that ``multi_scale`` and ``concat`` add to the last one.
        classifier_scale: what z is multiplied by before the classifier reads it.
        classifier: reads the representation.
        rotation: logits of the four rotations, from what the classifier reads; ``None`` without
            ``config.rotations``.
    """

    mean: Tensor
    std: Tensor
    scales: tuple[Scale, ...]
    middle: str
    classifier_scale: float
    classifier: Classifier
    rotation: nn.Linear | None

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.classifier_scale = 1 / config.temperature
        self.rotation = None
        # Channels-last is a quarter faster, but on the CPU the backward pass of torch 2.13 writes
        # outside its buffers when layers are narrower than a vector register (results/log.md,
        # 2026-11-15): only multiples of the widest register's sixteen floats may have it.
        narrow = config.width % 16 != 0
        self._layout = torch.contiguous_format if narrow else torch.channels_last
        for name, values in (("mean", config.mean), ("std", config.std)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    @abstractmethod
    def maps(self, x: Tensor) -> Iterator[Tensor]:
        """The feature map ``(N, C, H, W)`` of each scale, in their order, for normalised images."""

    def prepare(self, images: Tensor) -> None:
        """What has to be known of the training images before the first step; here nothing.

        Args:
            images: ``(N, C, H, W)`` uint8 or uint16, some thousands of them.
        """

    def early_parameters(self) -> list[nn.Parameter]:
        """Those that are trained in the first epochs only; here none."""
        return []

    @property
    def two_scales(self) -> tuple[str, str]:
        """A middle scale, for texture, and the last one, for meaning."""
        return self.middle, self.scales[-1].name

    def _add_classifier(self) -> None:
        """The projection to z, if there is one, and the classifier."""
        channels = {scale.name: scale.channels for scale in self.scales}
        last = self.scales[-1].channels
        both = self.config.representation in ("multi_scale", "concat")
        pooled = channels[self.middle] + last if both else last
        self.projection: nn.Module | None = None
        if self.config.representation in ("multi_scale", "single_scale"):
            linear = nn.Linear(pooled, last)
            self.projection = nn.Sequential(linear, nn.BatchNorm1d(last), nn.ReLU())
            pooled = last
        self.z_width = pooled
        self.classifier = CLASSIFIERS[self.config.classifier](pooled, self.config.num_classes)

    def _add_rotations(self) -> None:
        """The classifier of rotations, if there is one: last, so that no other weight changes."""
        if self.config.rotations:
            self.rotation = nn.Linear(self.z_width, TURNS)

    def forward(self, images: Tensor) -> Outputs:
        return self.classify(*self.encode(images))

    def classify(self, hidden: Tensor, features: dict[str, Tensor]) -> Outputs:
        """The outputs from what ``encode`` returns."""
        logits, uncertainty = self.classifier.predict(hidden)
        return Outputs(logits, features, uncertainty, self.linear_classifier())

    def linear_classifier(self) -> LinearClassifier | None:
        """The classifier, if it is linear and reads z.

        With ``concat`` it reads what is not among the features.
        """
        if not isinstance(self.classifier, nn.Linear) or self.config.representation == "concat":
            return None
        return LinearClassifier.of(self.classifier, "z", self.classifier_scale)

    def encode(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The classifier's input ``(N, D)``, and the features by name."""
        features = {
            scale.name: pool(values, scale.pooling)
            for scale, values in zip(self.scales, self.maps(self._normalised(images)), strict=True)
        }
        hidden, z = self._represent(*(features[name] for name in self.two_scales))
        return hidden, {**features, "z": z}

    def _normalised(self, images: Tensor) -> Tensor:
        white = _WHITE.get(images.dtype, 1.0)
        x = images.to(dtype=self.mean.dtype, memory_format=self._layout)
        return (x - self.mean * white) / (self.std * white)

    def _represent(self, middle: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the classifier, and z, the input of the detectors."""
        if self.config.representation == "concat":
            # Before the other: the order decides in which gradients are added, to the last bit.
            apart = [normalize(middle), normalize(last)]
            return torch.cat([middle, last], 1), torch.cat(apart, 1)
        both = self.config.representation == "multi_scale"
        hidden = torch.cat([middle, last], 1) if both else last
        if self.projection is not None:
            hidden = self.projection(hidden)
        scale = self.classifier_scale
        return (hidden if scale == 1 else hidden * scale), hidden
