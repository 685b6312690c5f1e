"""A user's own model for ``goen fit`` and ``goen extract``: its options, and what its config says.

Where an option is not given, the model's own config decides.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
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
from goen.cli.output.console import note
from goen.data.images.pixel_format import COLOUR, PixelFormat
from goen.data.imageset import ImageSet
from goen.data.sets.folders import image_size, open_image_set, pixel_formats_of_set
from goen.data.sets.readers import class_names
from goen.errors import UsageError
from goen.features.layers import accepts_images
from goen.features.loaded_model import LoadedModel
from goen.features.pooling import Layout, Tokens
from goen.features.preprocess import InputPreprocessing, Preprocess, Preprocessing
from goen.io.limits import check_image_size
from goen.models.placement import find_device

_SHOWN = 5


class ExtractionSettings(TypedDict):
    """Arguments of ``goen.extract`` and ``Gate.fit``."""

    layers: str | tuple[str, ...]
    logits: str | int | None
    preprocess: Preprocessing | InputPreprocessing | None
    tokens: Tokens
    layout: Layout
    batch_size: int


@dataclass(frozen=True)
class ReadingOptions:
    """How a model takes its inputs, and what is read of it.

    Attributes:
        weights: the model's weights: a .safetensors file, or a .pt file of weights alone.
        layers: layers whose features are read (default: auto, the layer at half of the depth and
            the last before the classifier). LAYER:mean_abs, :std or :max pools a feature map by
            another statistic than its mean.
        size: height and width (or one number) that images are resized to (default: those of the
            first image, or the model's own for hf and timm).
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
    size: Annotated[tuple[int, ...], several("INT")] = ()
    mean: Annotated[tuple[float, ...], several("FLOAT")] = ()
    std: Annotated[tuple[float, ...], several("FLOAT")] = ()
    preprocess: OptionalFunction = None
    classes: SomeNames = ()
    logits: OptionalName = None
    tokens: Tokens = "mean"
    layout: Layout = "auto"
    batch_size: int = 128

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

    def image_size(self, name: str) -> tuple[int, int] | None:
        """What the images of a set are resized to: --size, or for folders the model's own config.

        Known sets are not resized when they are read; the model's preprocessing does it.
        """
        size = self.options.size
        if len(size) > 2 or any(side < 1 for side in size):
            raise UsageError(
                f"--size is one number, or height and width, got {' '.join(map(str, size))}."
            )
        if size:
            return size[0], size[-1]
        own = self.preprocess(images=True)
        return own.read_image_size if Path(name).is_dir() and isinstance(own, Preprocess) else None

    def open_images(self, name: str, *, labelled: bool = True) -> tuple[ImageSet, PixelFormat]:
        """The images of a dataset as the model takes them, and the format of their pixels.

        Args:
            name: of a folder, a file or a known set.
            labelled: whether they have classes; else all images below the folder are read.
        """
        size = self.image_size(name)
        if size is not None:
            check_image_size(*size)  # now, and not when the gate is saved
        pixel_format = self._pixel_format(name, size)
        order: tuple[str, ...] | None = ()
        if labelled:
            order = self.options.classes or self.class_order(name, pixel_format)
        images = open_image_set(name, size, order, pixel_format)
        check_image_size(*images.image_shape[1:])
        return images, pixel_format

    def _pixel_format(self, name: str, size: tuple[int, int] | None) -> PixelFormat:
        """How the images of a dataset are read: the first format that the model takes.

        A note says so if that is not colour. If it takes none of them, the usual one is returned:
        the fit has the reason.
        """
        classes = self.options.classes
        formats = pixel_formats_of_set(name, classes)
        preprocess = self.preprocess(images=True)
        for found in formats if len(formats) > 1 else ():
            height, width = size or image_size(name, found, classes)
            if accepts_images(self.loaded.model, (found.channels, height, width), preprocess):
                if found != COLOUR:
                    note(f"the model takes images of {found}: pictures are read as such")
                return found
        return formats[0]

    def class_order(self, train: str, pixel_format: PixelFormat = COLOUR) -> tuple[str, ...] | None:
        """The classes in the order of the logits; ``None`` where one of the two only numbers them.

        Raises:
            UsageError: the training images have other classes.
        """
        names = self.loaded.classes
        if not names:
            return None
        if Path(train).is_dir():
            there = class_names(Path(train))
        else:
            there = open_image_set(train, None, None, pixel_format).classes
        if {*there} == {*names}:
            return names
        if there == tuple(map(str, range(len(there)))):
            return None
        only = {
            "Only the model has": [name for name in names if name not in there],
            "Only the images have": [name for name in there if name not in names],
        }
        shown = " ".join(
            f"{what}: {', '.join(some[:_SHOWN])}{', ...' if len(some) > _SHOWN else ''}."
            for what, some in only.items()
            if some
        )
        raise UsageError(
            f"The classes of {train} are not those of the model. {shown} Name the folders as the "
            "model's config does, or give --classes, the folders in the order of the model's "
            "logits."
        )
