"""The sets that a gate is fitted on, as streams that are checked to be disjoint."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from goen.batch import Inputs
from goen.checks import check_number
from goen.data.input_spec import InputsOption, InputSpec, find_input_spec
from goen.data.inputs import (
    BatchStream,
    Images,
    as_stream,
    first_inputs,
    require_disjoint_streams,
)
from goen.data.sets.folders import AS_THEY_ARE, ImageReading
from goen.detectors import Detector
from goen.errors import FitError, UsageError, warn
from goen.features.reading import ModelReading
from goen.functional.conformal import required_held_out
from goen.gate.fitting.groups import Groups, number_groups
from goen.io.manifest import JsonObject

CALIBRATION_SHARE = 0.6
"""Of the held-out images, for a detector that needs calibration images and was given none."""
OOD = "ood "
"""What the role of OOD images begins with; their kind follows."""
# The least number of images from which a mean and a spread can be estimated.
_FEWEST = 6
# The share of held-out images that may be copies of others without a warning.
_COPIES = 0.05


AnyInputs: TypeAlias = Images | BatchStream
AnyOod: TypeAlias = AnyInputs | Mapping[str, AnyInputs] | None
GivenSets: TypeAlias = tuple[AnyInputs | None, AnyInputs, AnyInputs | float | None, AnyOod]
"""The sets of a fit as they are given: train, held_out, calibration, ood."""


def open_paths(
    reading: ModelReading,
    train: Images | None,
    held_out: Images,
    calibration: Images | float | None,
    ood: Images | Mapping[str, Images] | None,
    batch_size: int,
    inputs: InputsOption,
) -> GivenSets:
    """The same sets, those given as paths as streams of images as the model takes them."""
    given = {"train": train, "held_out": held_out, "calibration": calibration}
    several = isinstance(ood, Mapping)
    kinds = {f"{OOD}{kind}": kind for kind in ood} if isinstance(ood, Mapping) else {"ood": ""}
    sets: dict[str, Any] = given | {
        role: ood[kind] if isinstance(ood, Mapping) else ood for role, kind in kinds.items()
    }
    images = {
        role: one for role, one in sets.items() if not isinstance(one, bool | int | float | None)
    }
    sets |= reading.open_paths(images, batch_size, inputs)
    unlike = {kind: sets[role] for role, kind in kinds.items()} if several else sets["ood"]
    return sets["train"], sets["held_out"], sets["calibration"], unlike


@dataclass(frozen=True)
class FitSets:
    """The images a gate is fitted on.

    Attributes:
        streams: by role: ``train``, with labels, if the detector learns from training images;
            ``held_out``; ``calibration``, if the detector is calibrated with images of its own;
            ``ood KIND`` for each kind of OOD images.
        share: of the held-out images, those that calibrate the detector.
        false_alarm_rate: of ID images, for which the held-out images are enough.
        first: two inputs or more.
        spec: what the inputs are.
        groups: of the held-out images, as numbers, if they come in groups.
    """

    streams: Mapping[str, BatchStream]
    share: float
    false_alarm_rate: float
    first: Inputs
    spec: InputSpec
    groups: NDArray[np.int64] | None = None

    @classmethod
    def open(
        cls,
        detector: Detector,
        train: AnyInputs | None,
        held_out: AnyInputs,
        calibration: AnyInputs | float | None,
        ood: AnyOod,
        *,
        false_alarm_rate: float,
        batch_size: int,
        inputs: InputsOption = "auto",
    ) -> "FitSets":
        """The sets as streams, checked to be disjoint and enough for the rate.

        Raises:
            UsageError: no training images for a detector that learns from them, images that it does
                not use, or a share that is none.
            FitError: too few held-out images for the rate.
            LeakError: an image in two of the sets.
        """
        if train is None and detector.needs_fit:
            raise UsageError(f"{detector} learns from training images: give train (--train).")
        given = {} if train is None else {"train": train}
        given["held_out"] = held_out
        unlike = ood_streams(detector, ood, batch_size, inputs)
        if detector.needs_ood and not unlike:
            raise UsageError("The choice of a detector needs OOD images: give ood (--ood).")
        share = 0.0
        if detector.calibrates(with_ood=bool(unlike)):
            if calibration is None:
                share = CALIBRATION_SHARE
            elif isinstance(calibration, bool | int | float):
                check_number("calibration (--calibration)", calibration, above=0, below=1)
                share = float(calibration)
            else:
                given["calibration"] = calibration
        elif calibration is not None:
            raise UsageError(
                f"{detector} uses no calibration images: leave out calibration= (--calibration)."
            )
        streams = {role: as_stream(s, role, batch_size, inputs) for role, s in given.items()}
        require_held_out(streams["held_out"].count, share, false_alarm_rate)
        streams |= unlike
        require_disjoint_streams(streams)
        tried = next(iter(streams))
        first, streams[tried] = first_inputs(streams[tried])
        spec = find_input_spec(first, inputs, tried)
        streams = {role: replace(stream, spec=spec) for role, stream in streams.items()}
        return cls(streams, share, false_alarm_rate, first, spec)

    def in_groups(self, groups: Groups | None) -> "FitSets":
        """The same sets, of which the held-out images come in these groups, if there are any.

        Raises:
            UsageError: another number of images, or an image without a group.
            FitError: too few groups for the rate.
        """
        if groups is None:
            return self
        count = self.streams["held_out"].count
        numbers = number_groups(groups, count)
        require_held_out(count, self.share, self.false_alarm_rate, numbers)
        return replace(self, groups=numbers)


def split_held_out(
    count: int, share: float, false_alarm_rate: float, groups: NDArray[np.int64] | None = None
) -> tuple[Tensor, Tensor]:
    """Rows of the held-out images that calibrate, and rows that set the threshold.

    One permutation, fixed by the count, so that a set sorted by class is split evenly; of groups,
    so that none has rows of both kinds. Without a share all rows set the threshold, in their order.

    Raises:
        FitError: there are too few for the rate.
    """
    require_held_out(count, share, false_alarm_rate, groups)
    if not share:
        return torch.arange(0), torch.arange(count)
    if groups is not None:
        chosen, _ = split_held_out(int(groups.max()) + 1, share, false_alarm_rate)
        calibrates = torch.from_numpy(np.isin(groups, chosen.numpy()))
        return torch.nonzero(calibrates).flatten(), torch.nonzero(~calibrates).flatten()
    order = torch.from_numpy(np.random.RandomState(0).permutation(count))
    calibrating = _calibrating(count, share)
    return order[:calibrating], order[calibrating:]


def _calibrating(count: int, share: float) -> int:
    return math.floor(share * count + 1e-9)


def require_held_out(
    count: int | None,
    share: float,
    false_alarm_rate: float,
    groups: NDArray[np.int64] | None = None,
) -> None:
    """Raise a FitError when so many held-out images, or groups, cannot guarantee the rate."""
    needed = required_held_out(false_alarm_rate)
    what = "held-out images"
    if groups is not None:
        what = "groups of held-out images"
        count = int(groups.max(initial=-1)) + 1

    def is_enough(images: int) -> bool:
        calibrating = _calibrating(images, share)
        return images - calibrating >= needed and (not share or calibrating >= _FEWEST)

    if count is None or is_enough(count):
        return
    least = next(images for images in itertools.count(needed) if is_enough(images))
    split = f": {share:.0%} of them calibrate, and the threshold needs {needed}" if share else ""
    raise FitError(
        f"A false-alarm rate of {false_alarm_rate:g} needs at least {least} {what}, "
        f"got {count}{split}. Hold out more, or allow a higher rate."
    )


def ood_streams(
    detector: Detector,
    ood: AnyOod,
    batch_size: int,
    inputs: InputsOption,
    reading: ImageReading = AS_THEY_ARE,
) -> dict[str, BatchStream]:
    """Each kind of OOD images by its role, ``ood KIND``.

    Raises:
        UsageError: a detector that uses none.
    """
    if isinstance(ood, Mapping):
        kinds = [
            as_stream(part, str(kind), batch_size, inputs, reading) for kind, part in ood.items()
        ]
        streams = dict(zip(map(str, ood), kinds, strict=True))
    else:
        kinds = [] if ood is None else [as_stream(ood, "ood", batch_size, inputs, reading)]
        streams = {one.name: one for one in kinds}
    if streams and not detector.uses_ood:
        raise UsageError(f"{detector} uses no OOD images: leave out ood= (--ood).")
    return {OOD + kind: stream for kind, stream in streams.items()}


def describe_stream(stream: BatchStream) -> JsonObject:
    """The name, the size and, for an ``ImageSet``, the fingerprint, of a stream that was read."""
    count = len(stream.digests())
    fingerprint = {} if stream.images is None else {"fingerprint": stream.images.fingerprint}
    return {"name": stream.name, "images": count, **fingerprint}


def warn_of_copies(held_out: BatchStream) -> None:
    """Warn if many held-out images are copies of others, as where a sampler drew them."""
    digests = held_out.digests()
    copies = len(digests) - len(np.unique(digests))
    if copies > _COPIES * len(digests):
        warn(
            f"{copies:,} of the {len(digests):,} held-out images are copies of others, pixel for "
            "pixel. The false-alarm rate is guaranteed for images that were drawn independently: "
            "leave the copies out, unless new images repeat as often."
        )
