"""A user's own model for ``goen fit`` and ``goen extract``: its options, and what its config says.

Where an option is not given, the model's own config decides.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, TypedDict

from goen.cli.options.model import find_preprocess, make_model
from goen.cli.options.types import (
    Device,
    OptionalFunction,
    OptionalName,
    OptionalPath,
    SomeNames,
    several,
)
from goen.data.images.pixel_format import PixelFormat
from goen.data.imageset import ImageSet
from goen.data.sets.folders import open_image_set
from goen.errors import UsageError
from goen.features.loaded_model import LoadedModel
from goen.features.pooling import Layout, Tokens
from goen.features.preprocess import InputPreprocessing, Preprocess, Preprocessing
from goen.features.reading import ModelReading
from goen.io.limits import check_image_size
from goen.models.placement import find_device


class ExtractionSettings(TypedDict):
    """Arguments of ``goen.extract`` and ``Gate.fit``."""

    layers: str | tuple[str, ...]
    logits: str | int | None
    preprocess: Preprocessing | InputPreprocessing | None
    tokens: Tokens
    layout: Layout
    batch_size: int


@dataclass(frozen=True)
class NetworkOptions:
    """How a model takes its inputs but for their size, and what is read of it.

    Attributes:
        weights: the model's weights: a .safetensors file, or a .pt file of weights alone.
        layers: layers whose features are read (default: auto, the layer at half of the depth and
            the last before the classifier). LAYER:mean_abs, :std or :max pools a feature map by
            another statistic than its mean.
        mean: per channel, subtracted from images in [0, 1] before they enter the model.
        std: normalisation, per channel: divides after --mean.
        preprocess: a function of float images in [0, 1], instead of --mean and --std.
        classes: the class folders, in the order of the model's logits.
        logits: key, attribute or index of the logits in the model's output, if it is ambiguous.
        tokens: pooling of transformer tokens: the mean of all tokens, or the class token.
        layout: the axis of the channels in feature maps, where their shape is ambiguous.
        batch_size: images per forward pass.
    """

    weights: OptionalPath = None
    layers: SomeNames = ("auto",)
    mean: Annotated[tuple[float, ...], several("FLOAT")] = ()
    std: Annotated[tuple[float, ...], several("FLOAT")] = ()
    preprocess: OptionalFunction = None
    classes: SomeNames = ()
    logits: OptionalName = None
    tokens: Tokens = "mean"
    layout: Layout = "auto"
    batch_size: int = 128


@dataclass(frozen=True)
class ReadingOptions(NetworkOptions):
    """How a model takes its inputs, and what is read of it.

    Attributes:
        size: height and width (or one number) that images are resized to (default: those of the
            first image, or the model's own for hf and timm).
    """

    size: Annotated[tuple[int, ...], several("INT")] = ()

    def load_on(self, device: str, name: str) -> "OwnModel":
        """The model of this name on a device."""
        place = find_device(device)
        loaded = make_model(name, self.weights)
        loaded.model.to(place)
        return OwnModel(loaded, self)


@dataclass(frozen=True)
class ModelOptions(ReadingOptions):
    """How a model takes its inputs, what is read of it, and where it runs.

    Attributes:
        device: where the model runs: cpu, or cuda (cuda:1 is the second GPU).
    """

    device: Device = "cpu"

    def load(self, name: str) -> "OwnModel":
        """The model of this name."""
        return self.load_on(self.device, name)


@dataclass(frozen=True)
class OwnModel:
    """A model, and the options that replace parts of its config."""

    loaded: LoadedModel
    options: ReadingOptions = ReadingOptions()

    @cached_property
    def function(self) -> Preprocessing | None:
        """The one of --preprocess."""
        name = self.options.preprocess
        return None if name is None else find_preprocess(name)

    def preprocess(self, *, images: bool) -> Preprocessing | InputPreprocessing | None:
        """The preprocessing of images, or of other inputs.

        Raises:
            UsageError: options that exclude each other.
        """
        mean, std, sized = self.options.mean, self.options.std, bool(self.options.size)
        if self.function is not None:
            if mean or std:
                raise UsageError("Give --preprocess, or --mean and --std, not both.")
            return self.function
        if mean and std and sized:
            return Preprocess(mean, std)
        own = self.loaded.preprocess(images=images)
        if not isinstance(own, Preprocess):
            return Preprocess(mean or None, std or None) if mean or std else own
        own = replace(own, size=None, crop=None) if sized else own
        return replace(own, mean=mean or own.mean, std=std or own.std)

    def extraction(self, *, images: bool) -> ExtractionSettings:
        """How features are extracted from images, or from other inputs."""
        options, logits = self.options, self.options.logits
        return {
            "layers": "auto" if options.layers == ("auto",) else options.layers,
            "logits": int(logits) if logits and logits.isdigit() else logits,
            "preprocess": self.preprocess(images=images),
            "tokens": options.tokens,
            "layout": options.layout,
            "batch_size": options.batch_size,
        }

    @property
    def reading(self) -> ModelReading:
        """How image files are read for the model.

        Raises:
            UsageError: a size that is none.
        """
        size = self.options.size
        if len(size) > 2 or any(side < 1 for side in size):
            raise UsageError(
                f"--size is one number, or height and width, got {' '.join(map(str, size))}."
            )
        sides = (size[0], size[-1]) if size else None
        return ModelReading(self.loaded, self.preprocess(images=True), self.options.classes, sides)

    def open_images(self, name: str, *, labelled: bool = True) -> tuple[ImageSet, PixelFormat]:
        """The images of a dataset as the model takes them, and the format of their pixels.

        Args:
            name: of a folder, a file or a known set.
            labelled: whether they have classes; else all images below the folder are read.
        """
        found = self.reading.of(name, labelled=labelled)
        images = open_image_set(name, found.size, found.classes, found.pixel_format)
        check_image_size(*images.image_shape[1:])
        return images, found.pixel_format
