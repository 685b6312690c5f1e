"""A model with what its own files say about it: its preprocessing and the names of its classes."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from goen.features.preprocess import Preprocess, PreprocessSound

OwnPreprocess = Preprocess | PreprocessSound


@dataclass(frozen=True)
class LoadedModel:
    """A classifier, its preprocessing and its classes; ``Gate.fit`` and ``goen.load`` take it.

    Attributes:
        model: the classifier.
        name: where it comes from, such as ``hf:my-vit``; empty if that is not known.
        classes: in the order of the logits; empty if its files name none.
        read_preprocess: reads its preprocessing; ``None`` if its files have none. It raises a
            ``UsageError`` where goen cannot do what they ask for.
        image_size: (height, width) at which its images are read; ``None`` leaves it to the
            preprocessing or the images.
    """

    model: nn.Module
    name: str = ""
    classes: tuple[str, ...] = ()
    read_preprocess: Callable[[], OwnPreprocess | None] = lambda: None
    image_size: tuple[int, int] | None = None

    def preprocess(self, *, images: bool) -> OwnPreprocess | None:
        """Its preprocessing, if that is of images, or of something else.

        Raises:
            UsageError: goen cannot do what its files ask for.
        """
        found = self.read_preprocess()
        return found if isinstance(found, Preprocess) is images else None
