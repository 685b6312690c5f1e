"""The data splits: which images train, calibrate and evaluate, as in the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from logging import getLogger
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from goen.data.imageset import ImageSet, require_disjoint
from goen.data.sets.catalogue import CIFAR100_UNLIKE_CIFAR10
from goen.data.sets.embedded import digits, noise, photographs
from goen.data.sets.sources import load_set
from goen.errors import DataCorrupt, DataMissing, UsageError, unknown

_log = getLogger(__name__)
OodGroup = Literal["near", "far", "noise"]

# One seed for every split and all noise: changing the training seed must not change the data.
SPLIT_SEED = 42
VALIDATION_SEED = 7

PROTOCOLS = ("cifar10", "digits")
CIFAR100_REST = "cifar100-rest"

EXTRA_SETS: Mapping[str, OodGroup] = {
    "tiny-imagenet": "near",
    "mnist": "far",
    "textures": "far",
    "places": "far",
    CIFAR100_REST: "near",
}


@dataclass(frozen=True)
class OodSet:
    """A set the classifier was never trained on, and how far away it is."""

    images: ImageSet
    group: OodGroup


@dataclass(frozen=True)
class Protocol:
    """Disjoint sets with their roles.

    Attributes:
        name: ``cifar10`` or ``digits``.
        train: trains the network and fits the detectors.
        validation: ID images that the network is not trained on; see ``calibration_id`` and
            ``held_out``.
        test: ID images for evaluation alone.
        calibration_ood: OOD sets that may calibrate, by name.
        evaluation: OOD sets for evaluation alone, by name.
        missing: sets that are not available, with the reason and what to do.
        threshold_images: where the threshold's images come from: two fifths of the validation
            images, or a fifth of the test images. With the latter all validation images calibrate,
            as in the paper, which sets no threshold.
    """

    name: str
    train: ImageSet
    validation: ImageSet
    test: ImageSet
    calibration_ood: Mapping[str, ImageSet]
    evaluation: Mapping[str, OodSet]
    missing: Mapping[str, str]
    threshold_images: Literal["validation", "test"] = "validation"

    def __post_init__(self) -> None:
        every = (self.train, self.validation, self.test, *self.calibration_ood.values())
        for images in (*every, *(ood.images for ood in self.evaluation.values())):
            if images.image_shape != self.train.image_shape:
                raise DataCorrupt(
                    f"{images.name} has images of {_size(images)}, {self.train.name} of "
                    f"{_size(self.train)}. Resize them, or leave the set out."
                )
        used = (self.train, self.validation, *self.calibration_ood.values())
        for evaluated in (self.test, *(ood.images for ood in self.evaluation.values())):
            require_disjoint(evaluated, *used)
        require_disjoint(self.validation, self.train)

    @cached_property
    def calibration_id(self) -> ImageSet:
        """Three fifths of the validation images, or all, for early stopping and the head."""
        if self.threshold_images == "test":
            return self.validation
        return self._validation_parts["calibration"]

    @cached_property
    def held_out(self) -> ImageSet:
        """Two fifths of the validation images or a fifth of the test images, for the threshold."""
        if self.threshold_images == "test":
            return self.test.split({"held-out": len(self.test) // 5}, VALIDATION_SEED)["held-out"]
        return self._validation_parts["held-out"]

    @cached_property
    def sets_no_threshold(self) -> NDArray[np.bool_]:
        """Which test images did not set the threshold: the share flagged is measured on these."""
        return ~np.isin(self.test.digests, self.held_out.digests)

    @cached_property
    def _validation_parts(self) -> dict[str, ImageSet]:
        kept = len(self.validation) * 2 // 5
        sizes = {"calibration": len(self.validation) - kept, "held-out": kept}
        return self.validation.split(sizes, VALIDATION_SEED)


def protocol(
    name: str,
    *,
    data_dir: str | Path | None = None,
    download: bool = False,
    extra: tuple[str, ...] = (),
) -> Protocol:
    """The protocol of the paper on CIFAR-10, or its small twin on embedded digits.

    CIFAR-10: training images 45,000 / 5,000 by a fixed permutation, 10,000 test images; SVHN test
    5,000 for calibration and 21,032 for evaluation; CIFAR-100 test images of fifty classes unlike
    CIFAR-10's; noise, 2,000 and 5,000 others. The extra set ``cifar100-rest`` is CIFAR-100's other
    fifty classes, without images that CIFAR-10 has as well (two). A set that
    is not available is left out with a warning and named in ``missing``; without CIFAR-10 itself
    there is nothing to do.

    Args:
        name: ``cifar10`` or ``digits``.
        data_dir: a folder of local sets; else ``$GOEN_DATA``.
        download: whether sets may be fetched.
        extra: further sets to evaluate on, of ``EXTRA_SETS``.

    Example:
        >>> p = protocol("digits")
        >>> len(p.train), len(p.validation), len(p.test), list(p.evaluation)
        (664, 300, 300, ['unseen-digits', 'photographs', 'noise'])
    """
    if name == "digits":
        if extra:
            raise UsageError(f"Extra sets ({', '.join(extra)}) go with cifar10, not with digits.")
        return _digits()
    if name == "cifar10":
        return _cifar10(data_dir, download, extra)
    raise unknown("protocol", name, PROTOCOLS)


def training_images(name: str) -> ImageSet:
    """The training images of a protocol alone, for which nothing else need be at hand.

    Example:
        >>> training_images("digits").fingerprint == protocol("digits").train.fingerprint
        True
    """
    if name == "cifar10":
        return _cifar10_parts(load_set("cifar10", "train"))["train"]
    return protocol(name).train


def _cifar10_parts(training: ImageSet) -> dict[str, ImageSet]:
    return training.split({"train": 45_000, "validation": 5_000}, SPLIT_SEED)


def _size(images: ImageSet) -> str:
    return "×".join(map(str, images.image_shape[1:]))


def _digits() -> Protocol:
    everything = digits()
    known = everything.of_classes(tuple("0123456"), "digits 0-6")
    parts = known.split({"train": len(known) - 600, "validation": 300, "test": 300}, SPLIT_SEED)
    unseen = everything.of_classes(tuple("789"), "digits 7-9")
    temple, flower = (
        photographs().of_classes((c,), f"photograph of {c}") for c in ("china", "flower")
    )
    return Protocol(
        name="digits",
        train=parts["train"],
        validation=parts["validation"],
        test=parts["test"],
        calibration_ood={"photographs": temple, "noise": noise(400, SPLIT_SEED, stream=1)},
        evaluation={
            "unseen-digits": OodSet(unseen, "near"),
            "photographs": OodSet(flower, "far"),
            "noise": OodSet(noise(1000, SPLIT_SEED, stream=0), "noise"),
        },
        missing={},
    )


def _cifar10(data_dir: str | Path | None, download: bool, extra: tuple[str, ...]) -> Protocol:
    for name in extra:
        if name not in EXTRA_SETS:
            raise unknown("extra set", name, EXTRA_SETS)
    load = partial(load_set, data_dir=data_dir, download=download)
    training, test = load("cifar10", "train"), load("cifar10", "test")
    parts = _cifar10_parts(training)
    found: dict[str, ImageSet] = {}
    missing: dict[str, str] = {}
    for name in ("svhn", "cifar100", *(n for n in extra if n != CIFAR100_REST)):
        try:
            found[name] = load(name, "test" if name == "cifar100" else None)
        except DataMissing as error:
            missing[name] = str(error)
            _log.warning("%s It is left out.", error)

    side = training.image_shape[1]
    calibration = {"noise": noise(2_000, SPLIT_SEED, stream=1, side=side)}
    evaluation: dict[str, OodSet] = {}
    if "svhn" in found:
        halves = found["svhn"].split({"calibration": 5_000, "evaluation": 21_032}, SPLIT_SEED)
        calibration = {"svhn": halves["calibration"], **calibration}
        evaluation["svhn"] = OodSet(halves["evaluation"], "far")
    if "cifar100" in found:
        every = found["cifar100"]
        fifty = tuple(c for group in CIFAR100_UNLIKE_CIFAR10.values() for c in group)
        rest = tuple(c for c in every.classes if c not in fifty)
        unlike = every.of_classes(fifty, "cifar100/test (50 classes)")
        evaluation["cifar100"] = OodSet(unlike, "near")
        found[CIFAR100_REST] = every.of_classes(rest, "cifar100/test (the other 50 classes)")
    elif CIFAR100_REST in extra:
        missing[CIFAR100_REST] = missing["cifar100"]
    evaluation["noise"] = OodSet(noise(5_000, SPLIT_SEED, stream=0, side=side), "noise")
    for name in filter(found.__contains__, extra):
        # CIFAR-10 has some of them as well: a bus among the automobiles, a cow among the dogs.
        images = found[name].without(training, test) if name == CIFAR100_REST else found[name]
        evaluation[name] = OodSet(images, EXTRA_SETS[name])
    return Protocol(
        "cifar10", parts["train"], parts["validation"], test, calibration, evaluation, missing
    )
