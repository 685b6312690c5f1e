"""Cards of a gallery from a gate's predictions."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from goen.data.images.data_urls import image_url
from goen.data.images.decoding import read_thumbnail
from goen.data.images.pixel_format import Pixels
from goen.data.imageset import ImageSet
from goen.errors import DataError
from goen.gate import Gate, Prediction
from goen.gate.rates import Rates
from goen.io.files import printable_path
from goen.outputs import Outputs
from goen.progress import bar
from goen.report.gallery import Card, Gallery, Neighbour, TrainingImage, neighbour_numbers
from goen.report.texts import text_of

NUM_NEIGHBOURS = 3
_THUMBNAIL_SIDE = 160
# Of training images in a page, which may hold thousands of them.
_SIDE = 64
_NOT_FINITE = "The network's outputs are NaN or infinite."


def make_cards(
    gate: Gate,
    images: Pixels,
    names: Sequence[str],
    outputs: Outputs,
    prediction: Prediction,
    truth: Sequence[int] | None = None,
) -> list[Card]:
    """The cards of N images, in their order, with their nearest training images.

    Args:
        gate: made the prediction.
        images: what the network saw, ``(N, C, H, W)``.
        names: of the images.
        outputs: of the network.
        prediction: of the gate.
        truth: the true labels, if they are known.
    """
    nearest = _neighbours(gate, outputs, prediction)
    cue_p_values = np.array(list(prediction.cue_p_values.values())).T
    return [
        Card(
            name=names[i],
            seen=image_url(images[i]),
            label=int(prediction.label[i]),
            confidence=float(prediction.confidence[i]),
            p_value=float(prediction.p_value[i]),
            truth=None if truth is None else int(truth[i]),
            cue_p_values=tuple(cue_p_values[i].tolist()) if len(cue_p_values) else (),
            nearest=nearest[i],
            note="" if np.isfinite(prediction.score[i]) else _NOT_FINITE,
        )
        for i in range(len(prediction))
    ]


def _neighbours(
    gate: Gate, outputs: Outputs, prediction: Prediction
) -> list[tuple[tuple[Neighbour, ...], ...]]:
    """Of each image, in each layer; none where the outputs are not finite."""
    found: list[tuple[tuple[Neighbour, ...], ...]] = [()] * len(prediction)
    finite = torch.from_numpy(np.flatnonzero(np.isfinite(prediction.score)))
    layers = gate.detector.nearest(outputs[finite], NUM_NEIGHBOURS).values()
    by_layer = [
        [
            tuple(map(Neighbour, numbers, labels, distances))
            for numbers, labels, distances in zip(
                near.numbers.tolist(), near.labels.tolist(), near.distances.tolist(), strict=True
            )
        ]
        for near in layers
    ]
    for place, neighbours in zip(finite.tolist(), zip(*by_layer, strict=True), strict=False):
        found[place] = neighbours
    return found


def with_thumbnails(cards: Sequence[Card], files: Sequence[Path]) -> list[Card]:
    """The cards with thumbnails of the files that their images were read from."""

    def thumbnail(file: Path) -> str:
        try:
            return image_url(read_thumbnail(file, _THUMBNAIL_SIDE))
        except DataError:  # it was read before: gone or changed since; what was seen stays
            return ""

    found = []
    with ThreadPoolExecutor() as pool, bar() as progress:
        task = progress.add_task("thumbnails", total=len(cards), status="images")
        for card, url in zip(cards, pool.map(thumbnail, files), strict=True):
            found.append(replace(card, thumbnail=url))
            progress.advance(task)
    return found


def training_images(
    cards: Sequence[Card], training: ImageSet, files: Sequence[Path]
) -> dict[int, TrainingImage]:
    """The training images that the cards name, by number.

    Args:
        cards: of a gate that was fitted on ``training``.
        training: all training images.
        files: of them; empty if they have none.
    """
    found = {}
    for number in neighbour_numbers(cards):  # one at a time: large ones would fill the memory
        name = printable_path(files[number]) if files else ""
        found[number] = TrainingImage(name, image_url(training.read([number])[0], _SIDE))
    return found


def gate_gallery(
    name: str,
    gate: Gate,
    cards: Sequence[Card],
    files: Sequence[Path],
    training: ImageSet | None,
    training_files: Sequence[Path],
    rates: Rates | None = None,
) -> Gallery:
    """The cards of a gate's images with thumbnails, and the training images nearest to them.

    Args:
        name: of the gallery.
        gate: made their predictions.
        cards: of ``make_cards``.
        files: that their images were read from; empty if there are none.
        training: all training images, if they are at hand.
        training_files: of them; empty if they have none.
        rates: for the reader to choose from, if any.
    """
    return Gallery(
        name,
        cards=with_thumbnails(cards, files) if files else cards,
        classes=gate.classes,
        cues=cue_names(gate),
        layers=gate.detector.features if gate.detector.num_kept[0] else (),
        rates=rates,
        training={} if training is None else training_images(cards, training, training_files),
    )


def cue_names(gate: Gate) -> Sequence[str]:
    """Of the p-values that the cards of ``make_cards`` have for each cue, if they have any."""
    return gate.detector.cue_names if gate.has_cue_p_values else ()


def explain_neighbours(gate: Gate) -> str:
    """Which training images the cards' neighbours are chosen from, for the text of a page."""
    kept, total = gate.detector.num_kept
    return text_of("score.html", "neighbours", kept=kept, total=total)
