"""A gallery of images: the block of a page that shows images, the most suspicious first.

The page's script (``templates/gallery.js`` with ``rates.js``) draws the cards, filters them
and, where there are rates to choose from, decides again: an image is flagged where its p-value is
at most the rate, as in ``Gate.predict``. Python and JavaScript read and compare the same float64
numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from goen.gate.rates import Rates
from goen.io.manifest import JsonObject


class Neighbour(NamedTuple):
    """A training image near a card's: its number among the training images, label, distance."""

    number: int
    label: int
    distance: float


@dataclass(frozen=True)
class Card:
    """One image of a gallery.

    Attributes:
        name: the file's, or the image's number.
        seen: what the network saw, as a data URL.
        label: the classifier's.
        confidence: of the classifier.
        p_value: of the gate.
        thumbnail: the image before it was resized for the network, as a data URL.
        truth: the true label, if it is known.
        cue_p_values: in the order of the gallery's cues.
        nearest: training images, in each of the gallery's layers.
        note: anything else worth knowing.
    """

    name: str
    seen: str
    label: int
    confidence: float
    p_value: float
    thumbnail: str = ""
    truth: int | None = None
    cue_p_values: tuple[float, ...] = ()
    nearest: tuple[tuple[Neighbour, ...], ...] = ()
    note: str = ""


class TrainingImage(NamedTuple):
    """A training image: its name, and itself as a data URL."""

    name: str
    image: str


@dataclass(frozen=True)
class Gallery:
    """Images in the order of their cards, with filters.

    Attributes:
        name: of the block, unique on its page.
        cards: the images that are shown.
        classes: names of the classes.
        cues: names of the cues.
        layers: names of the layers in which neighbours are known.
        rates: to choose from; none where the decision is not for the reader to make.
        training: training images by number, where they are at hand.
        small: whether cards are small, for images with little beside them.
    """

    name: str
    cards: Sequence[Card]
    classes: Sequence[str]
    cues: Sequence[str] = ()
    layers: Sequence[str] = ()
    rates: Rates | None = None
    training: Mapping[int, TrainingImage] = field(default_factory=dict)
    small: bool = False

    def to_json(self) -> JsonObject:
        """For the script; numbers are exact."""
        return {
            "cards": [vars(card) for card in self.cards],
            "classes": self.classes,
            "cues": self.cues,
            "layers": self.layers,
            "rates": None if self.rates is None else self.rates.to_json(),
            "training": {str(number): image for number, image in self.training.items()},
        }


def neighbour_numbers(cards: Iterable[Card]) -> list[int]:
    """The numbers of all training images that these cards name, in order."""
    return sorted({n.number for card in cards for near in card.nearest for n in near})
