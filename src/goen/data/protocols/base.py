"""The value that every study takes: disjoint image sets with their roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from logging import getLogger
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from goen.checks import check_choice
from goen.data.imageset import ImageSet, require_disjoint
from goen.data.protocols.generated import (
    VALIDATION_SEED,
    generated_calibration,
    noise_like,
    validation_parts,
)
from goen.data.protocols.opening import OpenedPlan, open_plan
from goen.data.protocols.openood import find_benchmark, open_benchmark
from goen.data.protocols.plan import GENERATED, Places, Plan
from goen.data.protocols.plan_file import read_plan
from goen.errors import DataCorrupt, UsageError, first_of

_log = getLogger(__name__)
OodGroup = Literal["near", "far", "noise", "ood"]
"""How far away a set is; ``ood`` where nobody says."""
NAMED = ("cifar10", "cifar100", "digits")
"""The protocols that have a name; none of one's own has one of these."""
# Of the ID images for evaluation and of their errors, in results.
_TAKEN = ("test", "test errors")
_NO_OOD = (
    "%s has no OOD images to evaluate on: detection is measured on generated noise alone, which is "
    "easy. Give folders of images that do not belong to any class."
)


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
        flip: whether a mirrored image is of the same class; else no network is trained with flips.
        normalisation: the mean and the standard deviation of each channel of images in [0, 1] that
            a given model expects, if the protocol says so; ``goen.bench`` then normalises.
    """

    name: str
    train: ImageSet
    validation: ImageSet
    test: ImageSet
    calibration_ood: Mapping[str, ImageSet] = field(default_factory=dict)
    evaluation: Mapping[str, OodSet] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    threshold_images: Literal["validation", "test"] = "validation"
    flip: bool = True
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def __repr__(self) -> str:
        sizes = f"{len(self.train):,} training, {len(self.validation):,} validation"
        groups: dict[str, list[str]] = {}
        for name, ood in self.evaluation.items():
            groups.setdefault(ood.group, []).append(f"{name} {len(ood.images):,}")
        parts = [
            f"{sizes} and {len(self.test):,} test images of {len(self.train.classes):,} classes",
            *(f"{group}: {', '.join(names)}" for group, names in groups.items()),
        ]
        if self.calibration_ood:
            parts.append(f"calibrating: {', '.join(self.calibration_ood)}")
        return f"Protocol({self.name}; {'; '.join(parts)})"

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
        flip: bool = True,
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
            flip: whether a mirrored image is of the same class.

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
        if name in NAMED:
            name = f"own {name}"
        if calibration_ood is None:
            calibration_ood = generated_calibration(train, held_out, test)
        evaluation = _by_name(ood or {})
        if not evaluation:
            _log.warning(_NO_OOD, name)
            evaluation = _by_name(_noise_for(train, test))
        return cls(name, train, held_out, test, calibration_ood, evaluation, flip=flip)

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        ood: Places | Mapping[str, Places] = (),
        *,
        validation: float | None = None,
        test: float | None = None,
        calibration_ood: Places | None = None,
        size: int | tuple[int, int] | None = None,
        flip: bool = True,
        name: str | None = None,
    ) -> "Protocol":
        """A protocol of folders of images.

        The folder has ``train/``, ``val/`` and ``test/`` with a folder of images per class; what is
        not there is split from the training images, and without ``train/`` from the class folders
        that it has itself. The split is stratified and by content: names and order of the files do
        not change it. Files that cannot be read and copies are left out with a warning. Images are
        grey, in colour or of several bands as the files are; a protocol file may say which.

        Args:
            folder: of the ID images.
            ood: folders, stacks (NPZ, NPY) or known sets with OOD images: a list, or a dict by
                name, or by group (``near``, ``far``) either of them.
            validation: the share of each class that becomes validation images; see
                ``goen.data.protocols.splits.usual_shares``.
            test: the same for test images.
            calibration_ood: OOD sets that calibrate, as for ``ood``; also ``noise`` and
                ``augmented``, which are generated and the default.
            size: of the images in pixels, or (height, width). By default the median of the shorter
                sides, from 32 to 96, as a square.
            flip: whether a mirrored image is of the same class: not of text or digits.
            name: of the protocol; that of the folder if not given.

        Raises:
            UsageError: a folder that is not there, or one without images.
        """
        plan = Plan.of_folder(
            Path(folder), ood, validation=validation, test=test, calibration=calibration_ood
        )
        return cls.from_plan(
            replace(
                plan,
                name=name or plan.name,
                size=(size, size) if isinstance(size, int) else size,
                flip=flip,
            )
        )

    @classmethod
    def from_toml(cls, path: str | Path) -> "Protocol":
        """The protocol of a file as ``goen data new`` writes it.

        Raises:
            UsageError: no such file, one with unknown keys, or a folder that is not there.
        """
        return cls.from_plan(read_plan(Path(path)))

    @classmethod
    def from_openood(
        cls,
        root: str | Path,
        benchmark: str,
        *,
        full_spectrum: bool = False,
        sets: Sequence[str] = (),
    ) -> "Protocol":
        """A benchmark of OpenOOD 1.5, from its data folder: its lists, splits and preprocessing.

        Its validation images are the held-out images, and its OOD validation images may calibrate.
        ``goen.bench`` normalises as OpenOOD does, unless it is given a ``preprocess``.

        Args:
            root: the folder with ``benchmark_imglist/``, ``images_classic/`` and
                ``images_largescale/``, as its download script makes it.
            benchmark: ``cifar10``, ``cifar100``, ``imagenet200`` or ``imagenet``.
            full_spectrum: whether the test images include those under a covariate shift (FS-OOD).
            sets: the OOD sets to evaluate on, which alone need to be there; all if none is named.

        Raises:
            DataMissing: lists or images that are not there.
        """
        opened = open_benchmark(Path(root), benchmark, full_spectrum=full_spectrum, sets=sets)
        found = find_benchmark(benchmark)
        made = cls.from_sets(
            opened.train,
            opened.validation,
            opened.test,
            opened.ood,
            calibration_ood=opened.tuning,
            name=f"openood-{benchmark}{'-fs' * full_spectrum}",
        )
        return replace(made, normalisation=(found.mean, found.std))

    @classmethod
    def from_plan(
        cls, plan: Plan, opened: OpenedPlan | None = None, *, evaluates: bool = True
    ) -> "Protocol":
        """The protocol of a plan; see ``goen.data.protocols``.

        Args:
            plan: where the images lie.
            opened: its images, if they are read already.
            evaluates: whether anything is evaluated, so that a lack of OOD images is warned of.
        """
        opened = opened or open_plan(plan)
        train, validation, test = (opened.roles[r].images for r in ("train", "validation", "test"))
        wanted = dict.fromkeys(GENERATED) if plan.calibration is None else plan.calibration
        made = {}
        if any(name in GENERATED and place is None for name, place in wanted.items()):
            made = generated_calibration(train, validation, test)
        read = {name: part.images for name, part in opened.calibration.items()}
        calibration = {n: images for n in wanted if (images := (read | made).get(n)) is not None}
        groups = {
            group: {name: part.images for name, part in members.items()}
            for group, members in opened.ood.items()
        }
        if not evaluates and not any(groups.values()):
            groups = _noise_for(train, test)
        return cls.from_sets(
            train,
            validation,
            test,
            groups,
            calibration_ood=calibration,
            name=plan.name,
            flip=plan.flip,
        )

    @cached_property
    def calibration_id(self) -> ImageSet:
        """Three fifths of the validation images, or all, for early stopping and the head."""
        if self.threshold_images == "test":
            return self.validation
        return validation_parts(self.validation)["calibration"]

    @cached_property
    def held_out(self) -> ImageSet:
        """Two fifths of the validation images or a fifth of the test images, for the threshold."""
        if self.threshold_images == "test":
            return self.test.split({"held-out": len(self.test) // 5}, VALIDATION_SEED)["held-out"]
        return validation_parts(self.validation)["held-out"]

    @cached_property
    def sets_no_threshold(self) -> NDArray[np.bool_]:
        """Which test images did not set the threshold: the share flagged is measured on these."""
        return ~np.isin(self.test.digests, self.held_out.digests)


def _noise_for(train: ImageSet, test: ImageSet) -> dict[str, dict[str, ImageSet]]:
    """What is evaluated on where there are no OOD images, by group and name."""
    return {"noise": {"noise": noise_like(train, len(test), stream=0)}}


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


def _size(images: ImageSet) -> str:
    channels, height, width = images.image_shape
    return f"{height}×{width}" if channels == 3 else f"{height}×{width} in {channels} channels"
