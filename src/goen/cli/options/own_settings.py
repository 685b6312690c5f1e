"""What a model's own config says, where the options of ``goen fit`` say nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from goen.cli.options.model import find_form
from goen.data.images.pixel_format import COLOUR, PixelFormat
from goen.data.imageset import ImageSet
from goen.data.sets.folders import open_image_set
from goen.data.sets.readers import class_names
from goen.errors import UsageError
from goen.features.loaded_model import LoadedModel
from goen.features.preprocess import InputPreprocessing, Preprocess, Preprocessing
from goen.io.limits import check_image_size

_SHOWN = 5


@dataclass(frozen=True)
class OwnSettings:
    """A model and the options that replace parts of its config.

    Attributes:
        opened: the model.
        function: the one of --preprocess.
        mean: the values of --mean.
        std: the values of --std.
        sized: whether --size was given, in place of the model's own size and crop.
    """

    opened: LoadedModel
    function: Preprocessing | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    sized: bool = False

    def preprocess(self, *, images: bool) -> Preprocessing | InputPreprocessing | None:
        """The preprocessing of images, or of other inputs.

        Raises:
            UsageError: options that exclude each other.
        """
        if self.function is not None:
            if self.mean or self.std:
                raise UsageError("Give --preprocess, or --mean and --std, not both.")
            return self.function
        if self.mean and self.std and self.sized:
            return Preprocess(self.mean, self.std)
        own = self.opened.preprocess(images=images)
        if not isinstance(own, Preprocess):
            given = Preprocess(self.mean or None, self.std or None)
            return given if self.mean or self.std else own
        own = replace(own, size=None, crop=None) if self.sized else own
        return replace(own, mean=self.mean or own.mean, std=self.std or own.std)

    def read_image_size(self, train: str) -> tuple[int, int] | None:
        """What the pictures of a folder are resized to by the model's own config.

        Known sets are not resized when they are read; the model's preprocessing does it.
        """
        own = self.preprocess(images=True)
        if not Path(train).is_dir() or not isinstance(own, Preprocess):
            return None
        return own.read_image_size

    def open_images(
        self, name: str, size: tuple[int, ...], classes: tuple[str, ...], *, labelled: bool = True
    ) -> tuple[ImageSet, PixelFormat]:
        """The images of a dataset as the model takes them, and the form of their pixels.

        Args:
            name: of a folder, a file or a known set.
            size: the values of --size.
            classes: those of --classes; else they are numbered as the model's config does.
            labelled: whether they have classes; else all images below the folder are read.
        """
        if len(size) > 2 or any(side < 1 for side in size):
            raise UsageError(
                f"--size is one number, or height and width, got {' '.join(map(str, size))}."
            )
        sides = (size[0], size[-1]) if size else self.read_image_size(name)
        if sides is not None:
            check_image_size(*sides)  # now, and not when the gate is saved
        form = find_form(name, self.opened.model, sides, self.preprocess(images=True), classes)
        order = (classes or self.class_order(name, form)) if labelled else ()
        images = open_image_set(name, sides, order, form)
        check_image_size(*images.image_shape[1:])
        return images, form

    def class_order(self, train: str, form: PixelFormat = COLOUR) -> tuple[str, ...] | None:
        """The classes in the order of the logits; ``None`` where one of the two only numbers them.

        Raises:
            UsageError: the training images have other classes.
        """
        names = self.opened.classes
        if not names:
            return None
        if Path(train).is_dir():
            there = class_names(Path(train))
        else:
            there = open_image_set(train, None, None, form).classes
        if {*there} == {*names}:
            return names
        if there == tuple(map(str, range(len(there)))):
            return None
        lacking = [name for name in names if name not in there]
        others = [name for name in there if name not in names]
        raise UsageError(
            f"The classes of {train} are not those of the model. "
            + " ".join(
                f"{what}: {', '.join(some[:_SHOWN])}{', ...' if len(some) > _SHOWN else ''}."
                for what, some in (
                    ("Only the model has", lacking),
                    ("Only the images have", others),
                )
                if some
            )
            + " Name the folders as the model's config does, or give --classes, the folders in the "
            "order of the model's logits."
        )

    def tensor_classes(self, given: Sequence[str]) -> tuple[str, ...]:
        """The names given, or those of the config; empty if there are none."""
        return tuple(given) or self.opened.classes
