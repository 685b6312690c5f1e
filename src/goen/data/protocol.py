"""The protocols that have a name: CIFAR-10 as in the paper, CIFAR-100, and embedded digits."""

from collections.abc import Callable, Mapping
from functools import partial
from logging import getLogger
from pathlib import Path

from goen.data.imageset import ImageSet
from goen.data.protocols.base import NAMED, OodGroup
from goen.data.protocols.base import OodSet as OodSet
from goen.data.protocols.base import Protocol as Protocol
from goen.data.protocols.generated import SPLIT_SEED, augmented
from goen.data.protocols.plan import AUGMENTED
from goen.data.sets.catalogue import CIFAR100_UNLIKE_CIFAR10
from goen.data.sets.embedded import digits, noise, photographs
from goen.data.sets.sources import load_set
from goen.errors import DataMissing, UsageError, unknown

_log = getLogger(__name__)

PROTOCOLS = NAMED
CIFAR100_REST = "cifar100-rest"

EXTRA_SETS: Mapping[str, OodGroup] = {
    "tiny-imagenet": "near",
    "mnist": "far",
    "textures": "far",
    "places": "far",
    CIFAR100_REST: "near",
}
_OTHER_CIFAR = {"cifar10": "cifar100", "cifar100": "cifar10"}
_SETS = ("svhn", "tiny-imagenet", "mnist", "textures", "places", "noise", AUGMENTED)
CALIBRATION_SETS: Mapping[str, tuple[str, ...]] = {
    "cifar10": _SETS,
    "cifar100": _SETS,
    "digits": ("photographs", "noise", AUGMENTED),
}
"""The OOD sets that may calibrate in each protocol, in the order in which they do."""
PAPERS_CALIBRATION = {
    "cifar10": ("svhn", "noise"),
    "cifar100": ("svhn", "noise"),
    "digits": ("photographs", "noise"),
}
"""Those that do unless others are chosen."""


def protocol(
    name: str,
    *,
    data_dir: str | Path | None = None,
    download: bool = False,
    extra: tuple[str, ...] = (),
    calibration: tuple[str, ...] | None = None,
) -> Protocol:
    """The protocol of the paper on CIFAR-10, the same on CIFAR-100, or a small twin on digits.

    CIFAR-10: training images 45,000 / 5,000 by a fixed permutation, 10,000 test images; SVHN test
    5,000 for calibration and 21,032 for evaluation; CIFAR-100 test images of fifty classes unlike
    CIFAR-10's; noise, 2,000 and 5,000 others. The extra set ``cifar100-rest`` is CIFAR-100's other
    fifty classes, without images that CIFAR-10 has as well (two). A set that
    is not available is left out with a warning and named in ``missing``; without CIFAR-10 itself
    there is nothing to do. CIFAR-100 is split in the same way, with the test images of CIFAR-10 as
    near OOD and the same other sets, as on OpenOOD's board.

    SVHN and noise calibrate in the paper; other sets may. Of an extra set that calibrates, one half
    does, drawn by a fixed permutation, and the other half is evaluated on. The images of every
    other set stay the same. ``augmented`` are the ID images that calibrate, strongly augmented
    (``goen.data.transforms.strong``); no set of them is evaluated on.

    Args:
        name: ``cifar10``, ``cifar100`` or ``digits``.
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
            raise UsageError(
                f"Extra sets ({', '.join(extra)}) go with cifar10 and cifar100, not with digits."
            )
        return _digits(chosen)
    load = partial(load_set, data_dir=data_dir, download=download)
    return _cifar(name, load, extra, chosen, required=calibration or ())


def training_images(name: str) -> ImageSet:
    """The training images of a protocol alone, for which nothing else need be at hand.

    Example:
        >>> training_images("digits").fingerprint == protocol("digits").train.fingerprint
        True
    """
    if name in _OTHER_CIFAR:
        return _cifar_parts(load_set(name, "train"))["train"]
    return protocol(name).train


def _cifar_parts(training: ImageSet) -> dict[str, ImageSet]:
    return training.split({"train": 45_000, "validation": 5_000}, SPLIT_SEED)


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
        AUGMENTED: lambda: augmented(parts["validation"]),
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


def _cifar(
    id_name: str,
    load: Callable[..., ImageSet],
    extra: tuple[str, ...],
    calibration: tuple[str, ...],
    required: tuple[str, ...],
) -> Protocol:
    known = [n for n in EXTRA_SETS if id_name == "cifar10" or n != CIFAR100_REST]
    for name in extra:
        if name not in known:
            raise unknown("extra set", name, known)
    others = tuple(dict.fromkeys((*extra, *filter(EXTRA_SETS.__contains__, calibration))))
    training, test = load(id_name, "train"), load(id_name, "test")
    parts = _cifar_parts(training)
    other = _OTHER_CIFAR[id_name]
    found: dict[str, ImageSet] = {}
    missing: dict[str, str] = {}
    for name in ("svhn", other, *(n for n in others if n != CIFAR100_REST)):
        try:
            found[name] = load(name, "test" if name == other else None)
        except DataMissing as error:
            if name in required:
                raise
            missing[name] = str(error)
            _log.warning("%s It is left out.", error)

    shape = training.image_shape
    evaluation: dict[str, OodSet] = {}
    may_calibrate = {"noise": noise(2_000, SPLIT_SEED, stream=1, shape=shape)}
    if AUGMENTED in calibration:
        may_calibrate[AUGMENTED] = augmented(parts["validation"]).without(training, test)
    if "svhn" in found:
        halves = found["svhn"].split({"calibration": 5_000, "evaluation": 21_032}, SPLIT_SEED)
        may_calibrate["svhn"] = halves["calibration"]
        evaluation["svhn"] = OodSet(halves["evaluation"], "far")
    if "cifar10" in found:
        # CIFAR-100 has some of them as well: a bus, a cow.
        evaluation["cifar10"] = OodSet(found["cifar10"].without(training, test), "near")
    elif "cifar100" in found:
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
    order = [n for n in CALIBRATION_SETS[id_name] if n in calibration and n in may_calibrate]
    used = {name: may_calibrate[name] for name in order}
    return Protocol(id_name, parts["train"], parts["validation"], test, used, evaluation, missing)


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
