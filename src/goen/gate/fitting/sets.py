"""The sets that a gate is fitted on, as streams that are checked to be disjoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
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
from goen.detectors import Detector
from goen.errors import FitError, UsageError, warn
from goen.functional.conformal import required_held_out
from goen.io.manifest import JsonObject

CALIBRATION_SHARE = 0.6
"""Of the held-out images, for a detector that needs calibration images and was given none."""
# The least number of images from which a mean and a spread can be estimated.
_FEWEST = 6
# The share of held-out images that may be copies of others without a warning.
_COPIES = 0.05


@dataclass(frozen=True)
class FitSets:
    """The images a gate is fitted on.

    Attributes:
        train: what the classifier was trained on, with labels; ``None`` for a detector that learns
            nothing.
        held_out: ID images it was not trained on.
        calibration: other ID images that calibrate the detector, or the share of the held-out
            images that does.
        ood: each kind of OOD images by its name.
        first: two inputs or more.
        spec: what the inputs are.
    """

    train: BatchStream | None
    held_out: BatchStream
    calibration: BatchStream | float
    ood: Mapping[str, BatchStream]
    first: Inputs
    spec: InputSpec

    @classmethod
    def open(
        cls,
        detector: Detector,
        train: Images | BatchStream | None,
        held_out: Images | BatchStream,
        calibration: Images | BatchStream | float | None,
        ood: Images | Mapping[str, Images | BatchStream] | None,
        *,
        false_alarm_rate: float,
        batch_size: int,
        inputs: InputsOption = "auto",
    ) -> "FitSets":
        """The sets as streams, checked to be disjoint and enough for the rate.

        Raises:
            UsageError: no training images for a detector that learns from them, or a share that is
                none.
            FitError: too few held-out images for the rate.
            LeakError: an image in two of the sets.
        """
        if train is None and detector.needs_fit:
            raise UsageError(f"{detector} learns from training images: give train.")
        streams = {} if train is None else {"train": as_stream(train, "train", batch_size, inputs)}
        streams["held_out"] = as_stream(held_out, "held_out", batch_size, inputs)
        unlike = ood_streams(ood, batch_size, inputs)
        share = _share(detector, calibration, with_ood=bool(unlike))
        if share is None:
            other = as_stream(calibration, "calibration", batch_size, inputs)  # type: ignore[arg-type]
            streams["calibration"] = other
        require_held_out(streams["held_out"].count, share or 0.0, false_alarm_rate)
        streams |= {f"ood {kind}": stream for kind, stream in unlike.items()}
        require_disjoint_streams(streams)
        tried = next(iter(streams))
        first, streams[tried] = first_inputs(streams[tried])
        spec = find_input_spec(first, inputs, tried)
        known = {role: replace(stream, spec=spec) for role, stream in streams.items()}
        return cls(
            known.get("train"),
            known["held_out"],
            known["calibration"] if share is None else share,
            {kind: known[f"ood {kind}"] for kind in unlike},
            first,
            spec,
        )

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the training set's classes, if it has any."""
        images = None if self.train is None else self.train.images
        return None if images is None else images.classes

    def by_role(self) -> dict[str, BatchStream]:
        """All sets: ``train``, ``held_out``, ``calibration``, ``ood KIND``."""
        given = {"train": self.train, "held_out": self.held_out, "calibration": self.calibration}
        roles = {role: stream for role, stream in given.items() if isinstance(stream, BatchStream)}
        return roles | {f"ood {kind}": stream for kind, stream in self.ood.items()}


def _share(detector: Detector, calibration: object, *, with_ood: bool) -> float | None:
    """The share of the held-out images that calibrates; ``None`` where other images do."""
    if calibration is None:
        return CALIBRATION_SHARE if detector.calibrates(with_ood=with_ood) else 0.0
    if not detector.calibrates(with_ood=with_ood):
        raise UsageError(f"{detector} uses no calibration images: leave calibration out.")
    if isinstance(calibration, bool | int | float):
        check_number("calibration", calibration, above=0, below=1)
        return float(calibration)
    return None


def split_held_out(count: int, share: float, false_alarm_rate: float) -> tuple[Tensor, Tensor]:
    """Rows of the held-out images that calibrate, and rows that set the threshold.

    One permutation, fixed by the count, so that a set sorted by class is split evenly. Without a
    share all rows set the threshold, in their order.

    Raises:
        FitError: there are too few for the rate.
    """
    require_held_out(count, share, false_alarm_rate)
    if not share:
        return torch.arange(0), torch.arange(count)
    order = torch.from_numpy(np.random.RandomState(0).permutation(count))
    calibrating = _calibrating(count, share)
    return order[:calibrating], order[calibrating:]


def _calibrating(count: int, share: float) -> int:
    return math.floor(share * count + 1e-9)


def require_held_out(count: int | None, share: float, false_alarm_rate: float) -> None:
    """Raise a FitError when so many held-out images cannot guarantee the rate."""
    needed = required_held_out(false_alarm_rate)
    if count is None:
        return
    calibrating = _calibrating(count, share)
    if count - calibrating >= needed and (not share or calibrating >= _FEWEST):
        return
    least = needed
    while share and not (
        least - _calibrating(least, share) >= needed and _calibrating(least, share) >= _FEWEST
    ):
        least += 1
    split = f": {share:.0%} of them calibrate, and the threshold needs {needed}" if share else ""
    raise FitError(
        f"A false-alarm rate of {false_alarm_rate:g} needs at least {least} held-out images, "
        f"got {count}{split}. Hold out more, or allow a higher rate."
    )


def ood_streams(
    ood: Images | Mapping[str, Images | BatchStream] | None,
    batch_size: int,
    inputs: InputsOption = "auto",
) -> dict[str, BatchStream]:
    """Each kind of OOD images by its name."""
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        one = as_stream(ood, "ood", batch_size, inputs)
        return {one.name: one}
    return {
        str(kind): as_stream(images, str(kind), batch_size, inputs) for kind, images in ood.items()
    }


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
