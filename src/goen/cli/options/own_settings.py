"""What a model's own config says, where the options of ``goen fit`` say nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from goen.data.folders import open_image_set
from goen.data.forms import COLOUR, PixelForm
from goen.data.readers import class_names
from goen.errors import UsageError
from goen.libraries.opened import OpenedModel
from goen.models.tapping.preprocess import InputPreprocessing, Preprocess, Preprocessing

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

    opened: OpenedModel
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

    def picture_size(self, train: str) -> tuple[int, int] | None:
        """What the pictures of a folder are resized to by the model's own config.

        Known sets are not resized when they are read; the model's preprocessing does it.
        """
        own = self.preprocess(images=True)
        if not Path(train).is_dir() or not isinstance(own, Preprocess):
            return None
        return own.picture_size

    def class_order(self, train: str, form: PixelForm = COLOUR) -> tuple[str, ...] | None:
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
