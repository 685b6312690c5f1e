"""The images that a gate was fitted on, found again for people to look at."""

from pathlib import Path

from goen.data.imageset import ImageSet
from goen.data.protocol import PROTOCOLS, training_images
from goen.data.sets.folders import open_image_set
from goen.errors import UsageError
from goen.gate.gate import Gate
from goen.io.manifest import Manifest


def open_training_images(gate: Gate, name: str) -> ImageSet:
    """The set of this name, checked to be the images that the gate was fitted on, in their order.

    Args:
        gate: of ``Gate.fit``, or a bundled one.
        name: a folder of class folders or a known set, as for ``goen fit --train``, or the protocol
            that the gate was trained by.

    Raises:
        UsageError: the gate keeps no training images, its training images are not identified, or
            the set is another one.
    """
    kept, total = gate.detector.num_kept
    if not kept:
        raise UsageError(
            f"{gate.detector} keeps no training images: there are no nearest ones to show. Leave "
            "out --training-images; a gate with the detector goen_m keeps some."
        )
    recorded = _fingerprint(gate, total)
    if name in PROTOCOLS and not Path(name).is_dir():
        trained = training_images(name)
        if trained.fingerprint == recorded:
            return trained
    found = open_image_set(name, gate.image_size, gate.classes, gate.pixel_format)
    if found.fingerprint != recorded:
        raise UsageError(
            f"{name} is not the set that this gate was fitted on: it has {len(found):,} images and "
            f"the hash {found.fingerprint}; {total:,} and {recorded} were expected. Give what was "
            "given to goen fit as --train, unchanged."
        )
    return found


def _fingerprint(gate: Gate, total: int) -> str:
    """Of the training set that the gate was fitted on."""
    splits = Manifest(Manifest({"splits": {}, **gate.metadata}).part("splits").content)
    train = splits.part("train") if "train" in splits else Manifest({})
    if "fingerprint" not in train:
        raise UsageError(
            "This gate does not record which training images it was fitted on, because they were "
            "no image set: they cannot be shown."
        )
    if int(train.number("images")) != total:
        raise UsageError(
            f"This gate was fitted on {train.number('images'):,.0f} training images and updated "
            f"with others, {total:,} in all: no single set holds them, so they cannot be shown."
        )
    return train.text("fingerprint")
