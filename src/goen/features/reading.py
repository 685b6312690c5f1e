"""How image files are read for a model: the size, the channels and the classes that it takes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path

from goen.data.images.pixel_format import COLOUR, PixelFormat
from goen.data.input_spec import ImageInputs, InputsOption, find_input_spec
from goen.data.inputs import BatchStream, Images, as_stream, first_inputs
from goen.data.sets.folders import (
    AS_THEY_ARE,
    ImageReading,
    Paths,
    are_paths,
    image_size,
    open_image_set,
    pixel_formats_of_set,
    require_class_folders,
)
from goen.data.sets.readers import class_names
from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor
from goen.features.layers import accepts_images
from goen.features.loaded_model import LoadedModel
from goen.features.preprocess import InputPreprocessing, Preprocess, Preprocessing
from goen.io.arrays import is_array_file
from goen.io.limits import check_image_size

_SHOWN = 5
# The roles of sets whose images may have labels.
_LABELLED = ("train", "held_out", "calibration", "images")
_log = getLogger(__name__)


@dataclass(frozen=True)
class ModelReading:
    """How image files are read for a model.

    Attributes:
        loaded: the model.
        preprocess: of images in [0, 1]; the model's own if not given.
        classes: in the order of the logits; those of the model's config if not given.
        size: (height, width); that of the preprocessing if not given, or of the first image.
    """

    loaded: LoadedModel
    preprocess: Preprocessing | InputPreprocessing | None = None
    classes: tuple[str, ...] = ()
    size: tuple[int, int] | None = None

    def of(self, name: str, *, labelled: bool = True) -> ImageReading:
        """How the images of a dataset are read.

        Args:
            name: of a folder, a file or a known set.
            labelled: whether they have classes; else all images below the folder are read.

        Raises:
            UsageError: class folders that are not the classes of the model, or too large a size.
        """
        if labelled and Path(name).is_dir():
            require_class_folders(Path(name))
        own = self._preprocess()
        size = self.size
        # Known sets are not resized when they are read; the model's preprocessing does it.
        if size is None and _is_read_from_images(Path(name)):
            size = self.loaded.image_size
            if size is None and isinstance(own, Preprocess):
                size = own.read_image_size
        if size is not None:
            check_image_size(*size)  # now, and not when the gate is saved
        pixel_format = self._pixel_format(name, size)
        classes: tuple[str, ...] | None = ()
        if labelled:
            classes = self.classes or self.class_order(name, pixel_format)
        return ImageReading(size, pixel_format, classes)

    def _preprocess(self) -> Preprocessing | InputPreprocessing | None:
        model = self.loaded.model
        if self.preprocess is None and isinstance(model, FeatureExtractor):
            return model.preprocess
        return self.preprocess or self.loaded.preprocess(images=True)

    def _pixel_format(self, name: str, size: tuple[int, int] | None) -> PixelFormat:
        """How the images of a dataset are read: the first format that the model takes.

        A message says so if that is not colour. If it takes none of them, the usual one is
        returned: the fit has the reason.
        """
        model = self.loaded.model
        model = model.model if isinstance(model, FeatureExtractor) else model
        formats = pixel_formats_of_set(name, self.classes)
        for found in formats if len(formats) > 1 else ():
            height, width = size or image_size(name, found, self.classes)
            if accepts_images(model, (found.channels, height, width), self._preprocess()):
                if found != COLOUR:
                    _log.info("The model takes images of %s: pictures are read as such.", found)
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
            "model's config does, or give the folders in the order of the model's logits "
            "(classes=, --classes)."
        )

    def open_paths(
        self, sets: Mapping[str, Images], batch_size: int, asked: InputsOption = "auto"
    ) -> dict[str, Images | BatchStream]:
        """The sets by role, those given as paths as streams of images as the first set has them.

        Args:
            sets: by role. ``train`` has the classes of the model; an image of ``held_out`` and
                ``calibration`` has a label if it lies in the folder of one of them, and so has one
                of ``images``, if all do; others have none.
            batch_size: of the streams.
            asked: what the inputs are taken for.
        """
        if not any(map(are_paths, sets.values())):
            return {**sets}
        found: ImageReading | None = None
        opened: dict[str, Images | BatchStream] = {}
        for role, given in sets.items():
            reading = AS_THEY_ARE
            if are_paths(given):
                reading = self._first_reading(role, given) if found is None else found
                if role not in _LABELLED:
                    reading = replace(reading, classes=())
            stream = as_stream(given, role, batch_size, asked, reading)
            if found is None:
                inputs, stream = first_inputs(stream)
                spec = find_input_spec(inputs, asked, role)
                if isinstance(spec, ImageInputs):
                    of_set = () if stream.images is None else stream.images.classes
                    classes = (of_set if role == "train" else ()) or self._known
                    found = ImageReading(spec.size, spec.pixel_format, classes or None)
            opened[role] = stream
        return opened

    @property
    def _known(self) -> tuple[str, ...]:
        return self.classes or self.loaded.classes

    def _first_reading(self, role: str, given: Paths) -> ImageReading:
        """How the first set is read, which all others follow."""
        several = isinstance(given, list | tuple)
        first = str(given[0] if isinstance(given, list | tuple) else given)
        if role == "train":
            return self.of(first, labelled=not several)
        reading, known = self.of(first, labelled=False), self._known
        there = class_names(Path(first)) if Path(first).is_dir() else ()
        # Of images that are in no particular role all are read, with labels if all have one.
        if role == "images" and known and not {*there} <= {*known}:
            return reading
        return replace(reading, classes=known or None)


def _is_read_from_images(place: Path) -> bool:
    """Whether this is a folder of images or an image, no known set and no stack."""
    return place.is_dir() or (place.is_file() and not is_array_file(place))
