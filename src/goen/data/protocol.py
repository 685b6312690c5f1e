"""The data splits: which images train, calibrate and evaluate, as in the paper."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from logging import getLogger
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from goen.checks import check_choice
from goen.data.images.pixel_format import Bits
from goen.data.imageset import ImageSet, require_disjoint
from goen.data.sets.catalogue import CIFAR100_UNLIKE_CIFAR10
from goen.data.sets.embedded import digits, noise, photographs
from goen.data.sets.sources import load_set
from goen.data.transforms.strong import strongly_augmented
from goen.errors import DataCorrupt, DataMissing, UsageError, first_of, unknown

_log = getLogger(__name__)
OodGroup = Literal["near", "far", "noise", "ood"]
"""How far away a set is; ``ood`` where nobody says."""

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
AUGMENTED = "augmented"
_MOST_GENERATED = 5_000  # images of a kind: they are in memory
_TAKEN = ("test",)  # of the ID images for evaluation, in results
_NO_OOD = (
    "%s has no OOD images to evaluate on: detection is measured on generated noise alone, which is "
    "easy. Give folders of images that do not belong to any class."
)
CALIBRATION_SETS: Mapping[str, tuple[str, ...]] = {
    "cifar10": ("svhn", "tiny-imagenet", "mnist", "textures", "places", "noise", AUGMENTED),
    "digits": ("photographs", "noise", AUGMENTED),
}
"""The OOD sets that may calibrate in each protocol, in the order in which they do."""
PAPERS_CALIBRATION = {"cifar10": ("svhn", "noise"), "digits": ("photographs", "noise")}
"""Those that do unless others are chosen."""


@dataclass(frozen=True)
class OodSet:
    """A set the classifier was never trained on, and how far away it is."""

    images: ImageSet
    group: OodGroup


OodSets: TypeAlias = Mapping[str, ImageSet] | Mapping[str, Mapping[str, ImageSet]]
"""OOD sets by name, or by group and name."""


@dataclass(frozen=True)
class Protocol:
    """Disjoint sets with their roles.

    Attributes:
        name: of the data, such as ``cifar10`` or that of a folder.
        train: trains the network and fits the detectors.
        validation: ID images that the network is not trained on; see ``calibration_id`` and
            ``held_out``.
        test: ID images for evaluation alone.
        calibration_ood: OOD sets that calibrate, by name.
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
    calibration_ood: Mapping[str, ImageSet] = field(default_factory=dict)
    evaluation: Mapping[str, OodSet] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    threshold_images: Literal["validation", "test"] = "validation"

    def __post_init__(self) -> None:
        every = (self.train, self.validation, self.test, *self.calibration_ood.values())
        for images in (*every, *(ood.images for ood in self.evaluation.values())):
            if images.image_shape != self.train.image_shape:
                raise DataCorrupt(
                    f"{images.name} has images of {_size(images)}, {self.train.name} of "
                    f"{_size(self.train)}. Resize them, or leave the set out."
                )
        for images in (self.validation, self.test):
            if images.classes != self.train.classes:
                raise UsageError(
                    f"{images.name} has other classes than {self.train.name}: "
                    f"{first_of(images.classes, 10)} instead of "
                    f"{first_of(self.train.classes, 10)}. ID sets have the same classes in the "
                    "same order."
                )
        used = (self.train, self.validation, *self.calibration_ood.values())
        for evaluated in (self.test, *(ood.images for ood in self.evaluation.values())):
            require_disjoint(evaluated, *used)
        require_disjoint(self.validation, self.train)

    @classmethod
    def from_sets(
        cls,
        train: ImageSet,
        held_out: ImageSet,
        test: ImageSet,
        ood: OodSets | None = None,
        *,
        calibration_ood: Mapping[str, ImageSet] | None = None,
        name: str = "own",
    ) -> "Protocol":
        """A protocol of your own image sets.

        Args:
            train: trains the network and fits the detectors.
            held_out: ID images that the network is not trained on: three fifths calibrate, two
                fifths set the threshold.
            test: ID images for evaluation alone.
            ood: OOD sets for evaluation alone: by name, or by group (``near``, ``far``) and name.
                Without any, generated noise is evaluated on.
            calibration_ood: OOD sets that calibrate, by name. If not given, generated ones do:
                noise, and strong augmentations of those held-out images that calibrate.
            name: of the protocol, for folders and tables.

        Raises:
            LeakError: a set for evaluation shares images with one that fits or calibrates.
            DataCorrupt: sets of images of different sizes.

        Example:
            >>> from goen.data import load_set
            >>> digits = load_set("digits").split({"train": 900, "held-out": 400, "test": 400}, 0)
            >>> ood = {"far": {"photographs": load_set("photographs")}}
            >>> p = Protocol.from_sets(*digits.values(), ood=ood, name="my digits")
            >>> p.evaluation["photographs"].group, list(p.calibration_ood)
            ('far', ['noise', 'augmented'])
        """
        if calibration_ood is None:
            calibration_ood = _generated_calibration(train, held_out, test)
        evaluation = _by_name(ood or {})
        if not evaluation:
            _log.warning(_NO_OOD, name)
            evaluation = {
                "noise": OodSet(
                    _noise_like(train, min(_MOST_GENERATED, len(test)), stream=0), "noise"
                )
            }
        return cls(name, train, held_out, test, calibration_ood, evaluation)

    @cached_property
    def calibration_id(self) -> ImageSet:
        """Three fifths of the validation images, or all, for early stopping and the head."""
        if self.threshold_images == "test":
            return self.validation
        return _validation_parts(self.validation)["calibration"]

    @cached_property
    def held_out(self) -> ImageSet:
        """Two fifths of the validation images or a fifth of the test images, for the threshold."""
        if self.threshold_images == "test":
            return self.test.split({"held-out": len(self.test) // 5}, VALIDATION_SEED)["held-out"]
        return _validation_parts(self.validation)["held-out"]

    @cached_property
    def sets_no_threshold(self) -> NDArray[np.bool_]:
        """Which test images did not set the threshold: the share flagged is measured on these."""
        return ~np.isin(self.test.digests, self.held_out.digests)


def protocol(
    name: str,
    *,
    data_dir: str | Path | None = None,
    download: bool = False,
    extra: tuple[str, ...] = (),
    calibration: tuple[str, ...] | None = None,
) -> Protocol:
    """The protocol of the paper on CIFAR-10, or its small twin on embedded digits.

    CIFAR-10: training images 45,000 / 5,000 by a fixed permutation, 10,000 test images; SVHN test
    5,000 for calibration and 21,032 for evaluation; CIFAR-100 test images of fifty classes unlike
    CIFAR-10's; noise, 2,000 and 5,000 others. The extra set ``cifar100-rest`` is CIFAR-100's other
    fifty classes, without images that CIFAR-10 has as well (two). A set that
    is not available is left out with a warning and named in ``missing``; without CIFAR-10 itself
    there is nothing to do.

    SVHN and noise calibrate in the paper; other sets may. Of an extra set that calibrates, one half
    does, drawn by a fixed permutation, and the other half is evaluated on. The images of every
    other set stay the same. ``augmented`` are the ID images that calibrate, strongly augmented
    (``goen.data.transforms.strong``); no set of them is evaluated on.

    Args:
        name: ``cifar10`` or ``digits``.
        data_dir: a folder of local sets; else ``$GOEN_DATA``.
        download: whether sets may be fetched.
        extra: further sets to evaluate on, of ``EXTRA_SETS``.
        calibration: the OOD sets that calibrate, of ``CALIBRATION_SETS``, in any order; the paper's
            if not given, none if empty. Those named here must be available.

    Example:
        >>> p = protocol("digits")
        >>> len(p.train), len(p.validation), len(p.test), list(p.evaluation)
        (664, 300, 300, ['unseen-digits', 'photographs', 'noise'])
        >>> list(protocol("digits", calibration=("augmented", "noise")).calibration_ood)
        ['noise', 'augmented']
    """
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    for other in calibration or ():
        if other not in CALIBRATION_SETS[name]:
            raise unknown("set for calibration", other, CALIBRATION_SETS[name])
    chosen = PAPERS_CALIBRATION[name] if calibration is None else calibration
    if name == "digits":
        if extra:
            raise UsageError(f"Extra sets ({', '.join(extra)}) go with cifar10, not with digits.")
        return _digits(chosen)
    load = partial(load_set, data_dir=data_dir, download=download)
    return _cifar10(load, extra, chosen, required=calibration or ())


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


def _by_name(ood: OodSets) -> dict[str, OodSet]:
    """The OOD sets that were given, each with its group."""
    found: dict[str, OodSet] = {}
    for key, given in ood.items():
        group: OodGroup = "ood"
        members = {key: given} if isinstance(given, ImageSet) else given
        if members is given:
            check_choice("group of OOD sets", key, get_args(OodGroup))
            group = cast("OodGroup", key)
        for name, images in members.items():
            if name in found or name in _TAKEN:
                raise UsageError(f"An OOD set has a name of its own; {name!r} is already taken.")
            found[name] = OodSet(images, group)
    return found


def _noise_like(images: ImageSet, count: int, stream: int) -> ImageSet:
    bits: Bits = 8 if images.pixels.dtype == np.uint8 else 16
    return noise(count, SPLIT_SEED, stream, images.image_shape, bits)


def _generated_calibration(
    train: ImageSet, validation: ImageSet, test: ImageSet
) -> dict[str, ImageSet]:
    """Noise and strong augmentations, as many of each as there are ID images that calibrate."""
    augmented = _augmented(validation, _MOST_GENERATED).without(train, test)
    count = min(_MOST_GENERATED, len(_validation_parts(validation)["calibration"]))
    sets = {"noise": _noise_like(train, count, stream=1), AUGMENTED: augmented}
    return {name: images for name, images in sets.items() if len(images)}


def _size(images: ImageSet) -> str:
    return "×".join(map(str, images.image_shape[1:]))


def _validation_parts(validation: ImageSet) -> dict[str, ImageSet]:
    kept = len(validation) * 2 // 5
    sizes = {"calibration": len(validation) - kept, "held-out": kept}
    return validation.split(sizes, VALIDATION_SEED)


def _augmented(validation: ImageSet, at_most: int | None = None) -> ImageSet:
    """Of the images that calibrate with every budget: never of one that sets a threshold."""
    calibration = _validation_parts(validation)["calibration"]
    calibration = calibration.take(range(len(calibration))[:at_most])
    return strongly_augmented(calibration, SPLIT_SEED).without(validation)


def _digits(calibration: tuple[str, ...]) -> Protocol:
    everything = digits()
    known = everything.of_classes(tuple("0123456"), "digits 0-6")
    parts = known.split({"train": len(known) - 600, "validation": 300, "test": 300}, SPLIT_SEED)
    unseen = everything.of_classes(tuple("789"), "digits 7-9")
    temple, flower = (
        photographs().of_classes((c,), f"photograph of {c}") for c in ("china", "flower")
    )
    makers: dict[str, Callable[[], ImageSet]] = {
        "photographs": lambda: temple,
        "noise": lambda: noise(400, SPLIT_SEED, stream=1),
        AUGMENTED: lambda: _augmented(parts["validation"]),
    }
    return Protocol(
        name="digits",
        train=parts["train"],
        validation=parts["validation"],
        test=parts["test"],
        calibration_ood={name: make() for name, make in makers.items() if name in calibration},
        evaluation={
            "unseen-digits": OodSet(unseen, "near"),
            "photographs": OodSet(flower, "far"),
            "noise": OodSet(noise(1000, SPLIT_SEED, stream=0), "noise"),
        },
        missing={},
    )


def _cifar10(
    load: Callable[..., ImageSet],
    extra: tuple[str, ...],
    calibration: tuple[str, ...],
    required: tuple[str, ...],
) -> Protocol:
    for name in extra:
        if name not in EXTRA_SETS:
            raise unknown("extra set", name, EXTRA_SETS)
    others = tuple(dict.fromkeys((*extra, *filter(EXTRA_SETS.__contains__, calibration))))
    training, test = load("cifar10", "train"), load("cifar10", "test")
    parts = _cifar10_parts(training)
    found: dict[str, ImageSet] = {}
    missing: dict[str, str] = {}
    for name in ("svhn", "cifar100", *(n for n in others if n != CIFAR100_REST)):
        try:
            found[name] = load(name, "test" if name == "cifar100" else None)
        except DataMissing as error:
            if name in required:
                raise
            missing[name] = str(error)
            _log.warning("%s It is left out.", error)

    shape = training.image_shape
    evaluation: dict[str, OodSet] = {}
    may_calibrate = {"noise": noise(2_000, SPLIT_SEED, stream=1, shape=shape)}
    if AUGMENTED in calibration:
        may_calibrate[AUGMENTED] = _augmented(parts["validation"]).without(training, test)
    if "svhn" in found:
        halves = found["svhn"].split({"calibration": 5_000, "evaluation": 21_032}, SPLIT_SEED)
        may_calibrate["svhn"] = halves["calibration"]
        evaluation["svhn"] = OodSet(halves["evaluation"], "far")
    if "cifar100" in found:
        unlike, found[CIFAR100_REST] = _cifar100_parts(found["cifar100"])
        evaluation["cifar100"] = OodSet(unlike, "near")
    elif CIFAR100_REST in extra:
        missing[CIFAR100_REST] = missing["cifar100"]
    evaluation["noise"] = OodSet(noise(5_000, SPLIT_SEED, stream=0, shape=shape), "noise")
    for name in filter(found.__contains__, others):
        # CIFAR-10 has some of them as well: a bus among the automobiles, a cow among the dogs.
        images = found[name].without(training, test) if name == CIFAR100_REST else found[name]
        if name in calibration:
            may_calibrate[name], images = _halves(images)
        evaluation[name] = OodSet(images, EXTRA_SETS[name])
    order = [n for n in CALIBRATION_SETS["cifar10"] if n in calibration and n in may_calibrate]
    used = {name: may_calibrate[name] for name in order}
    return Protocol("cifar10", parts["train"], parts["validation"], test, used, evaluation, missing)


def _cifar100_parts(every: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Fifty classes unlike CIFAR-10's, and the other fifty."""
    fifty = tuple(c for group in CIFAR100_UNLIKE_CIFAR10.values() for c in group)
    rest = tuple(c for c in every.classes if c not in fifty)
    return (
        every.of_classes(fifty, "cifar100/test (50 classes)"),
        every.of_classes(rest, "cifar100/test (the other 50 classes)"),
    )


def _halves(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """One half to calibrate, the other to evaluate; an image that is there twice calibrates."""
    half = len(images) // 2
    sizes = {"calibration": half, "evaluation": len(images) - half}
    parts = images.split(sizes, SPLIT_SEED)
    return parts["calibration"], parts["evaluation"].without(parts["calibration"])
