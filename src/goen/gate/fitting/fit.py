"""Fitting a gate: one pass over each set; no image is kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import TypeVar

import torch
from torch import nn

from goen.data.input_spec import ImageInputs, InputSpec
from goen.data.inputs import BatchStream, image_hashes, require_disjoint_streams
from goen.detectors import Detector
from goen.errors import UsageError, warn
from goen.features.extractor import FeatureExtractor
from goen.features.precomputed import Precomputed
from goen.gate.base import BaseGate
from goen.gate.diagnostics import FitDiagnostics, is_clearly_above, is_near_chance
from goen.gate.fitting.passes import (
    HeldOutPass,
    TrainingPass,
    fit_detector,
    gather,
    try_network,
)
from goen.gate.fitting.sets import FitSets, describe_stream, split_held_out, warn_of_copies
from goen.gate.threshold import HeldOut
from goen.models import ARCHITECTURES, Backbone
from goen.models.flip_averaging import FlipAveraged
from goen.models.placement import evaluating, placement
from goen.outputs import Outputs

# On its own training images; most classifiers that anybody uses are above.
_LOW_ACCURACY = 0.5
_NO_OOD = (
    "No OOD images were given: the gate decides by its p-values, with the same guarantee, and it "
    "returns no probability."
)
_log = getLogger(__name__)
AnyGate = TypeVar("AnyGate", bound=BaseGate)


def fit_gate(
    make: Callable[..., AnyGate],
    network: nn.Module,
    detector: Detector,
    sets: FitSets,
    *,
    false_alarm_rate: float,
    classes: Sequence[str] | None,
    made_from: str,
) -> AnyGate:
    """A gate, an object of ``make``, of this network and a detector that is not fitted yet.

    ``made_from`` is where the model comes from, for the manifest.
    """
    running = detector.prepare_network(network)
    train: TrainingPass | None = None
    with evaluating(network):
        outputs = try_network(network, running, sets.first)
        count = outputs.logits.shape[1]
        names = name_classes(sets.classes if classes is None else classes, count)
        if not detector.needs_fit:
            detector.fit_training(outputs, torch.zeros(len(outputs), dtype=torch.int64))
        if sets.train is not None:
            train = fit_detector(running, sets.train, detector)
        held_out = gather(running, sets.held_out, detector.features)
        ood = {kind: gather(running, s, detector.features) for kind, s in sets.ood.items()}
        calibration: Outputs | float
        if isinstance(sets.calibration, BatchStream):
            calibration = gather(running, sets.calibration, detector.features).outputs
        else:
            calibration = sets.calibration
    streams = sets.by_role()
    require_disjoint_streams(streams)  # of iterables only now all images are known
    _warn_of_accuracy(train, held_out, count, is_model=not isinstance(network, Precomputed))
    warn_of_copies(sets.held_out)
    if not ood and detector.calibrates(with_ood=True):
        _log.info(_NO_OOD)
    calibrated = calibrate(
        detector,
        held_out,
        calibration,
        {kind: found.outputs for kind, found in ood.items()},
        false_alarm_rate,
    )
    measured = {"train": train.accuracy if train else None, "held_out": held_out.accuracy}
    gate = make(
        network=network,
        detector=detector,
        held_out=calibrated.held_out,
        false_alarm_rate=false_alarm_rate,
        classes=names,
        inputs=sets.spec,
        metadata={
            "model": made_from,
            "splits": {role: describe_stream(stream) for role, stream in streams.items()},
            **{f"{k}_accuracy": value for k, value in measured.items() if value is not None},
        },
        image_hashes={role: image_hashes(stream.digests()) for role, stream in streams.items()},
    )
    return gate.with_diagnostics(calibrated.diagnostics)


@dataclass(frozen=True)
class Calibrated:
    """The held-out images under a calibrated detector."""

    held_out: HeldOut
    diagnostics: FitDiagnostics


def calibrate(
    detector: Detector,
    held_out: HeldOutPass,
    calibration: Outputs | float,
    ood: Mapping[str, Outputs],
    false_alarm_rate: float,
) -> Calibrated:
    """Calibrate the detector, and set the threshold with what is left of the held-out images.

    Args:
        detector: fitted.
        held_out: the held-out images.
        calibration: other ID images, or the share of the held-out images that calibrates.
        ood: OOD images by kind.
        false_alarm_rate: of the gate.
    """
    outputs = held_out.outputs
    share = calibration if isinstance(calibration, float) else 0.0
    calibrating, rows = split_held_out(len(held_out), share, false_alarm_rate)
    if isinstance(calibration, Outputs):
        detector.recalibrate(calibration, ood)
    elif share:
        detector.recalibrate(outputs[calibrating], ood)
    elif ood:
        raise UsageError(f"{detector} does not use OOD images: leave ood out.")
    cues = detector.cues(outputs)
    predicted = outputs.logits.argmax(dim=1)
    sets_threshold = torch.zeros(len(held_out), dtype=torch.bool)
    sets_threshold[rows] = True
    diagnostics = FitDiagnostics(
        scores=detector.score_cues(cues).numpy(),
        cues=cues.numpy(),
        predicted=predicted.numpy(),
        truth=None if outputs.labels is None else outputs.labels.numpy(),
        sets_threshold=sets_threshold.numpy(),
    )
    rounding = held_out.rounding(detector)
    scores = HeldOut.from_cues(detector, cues[rows], labels=predicted[rows], rounding=rounding)
    return Calibrated(scores, diagnostics)


def _warn_of_accuracy(
    train: TrainingPass | None, held_out: HeldOutPass, num_classes: int, *, is_model: bool
) -> None:
    """Warn of accuracies that sets given in the right places to the right model hardly have.

    A held-out set may have no labels, the training set has them.
    """
    measured = [("held-out", held_out.accuracy, len(held_out))]
    measured += [] if train is None else [("training", train.accuracy, train.count)]
    for name, accuracy, count in measured:
        if accuracy is not None and is_near_chance(accuracy, count, num_classes):
            warn(
                f"The classifier is right on {accuracy:.1%} of the {name} images, no better than "
                f"chance ({1 / num_classes:.1%}). Is the preprocessing missing, do the labels "
                "count the classes in another order than the logits, or are these other weights?"
            )
            return
    if train is None:
        return
    if held_out.accuracy is not None and is_clearly_above(
        held_out.accuracy, len(held_out), train.accuracy, train.count
    ):
        warn(
            f"The classifier is right on {held_out.accuracy:.1%} of the held-out images and on "
            f"{train.accuracy:.1%} of the training images. Are the two swapped, or was it "
            "trained on the held-out images? Then far more new images are flagged than the "
            "false-alarm rate says."
        )
    elif is_model and train.accuracy < _LOW_ACCURACY:
        warn(
            f"The classifier is right on {train.accuracy:.1%} of its training images. Is that what "
            "it should be? If not, look at the preprocessing (mean, standard deviation, size) and "
            "at the order of the classes."
        )


def gate_network(extractor: FeatureExtractor, flip_averaging: bool, spec: InputSpec) -> nn.Module:
    """The network of the gate: goen's own as it is, any other in its feature extractor.

    goen's own network outputs its features itself, and its gate can be loaded without a model.
    """
    if flip_averaging and not isinstance(spec, ImageInputs):
        raise UsageError(f"Only images can be averaged over flips; the inputs are {spec}.")
    model = extractor.model
    network: nn.Module = extractor
    if (
        isinstance(model, Backbone)
        and type(model) in ARCHITECTURES.values()
        and extractor.preprocess is None
        and extractor.logits is None
        and extractor.inputs == "images"
        and placement(model)[1] is torch.float32
        and {*extractor.layers} <= {scale.name for scale in model.scales}
    ):
        network = model
    return FlipAveraged(network) if flip_averaging else network


def name_classes(given: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """The names given, else numbers; as many as there are logits."""
    names = () if given is None else tuple(map(str, given))
    names = names or tuple(map(str, range(count)))
    if len(names) != count:
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise UsageError(
            f"The model has {count} logits, but there are {len(names)} class names ({shown}). Give "
            "one class name for each logit, in their order."
        )
    return names


def own_classes(names: Sequence[str], train: BatchStream | None) -> tuple[str, ...] | None:
    """The class names of the model's own config; ``None`` where the training set has its own.

    Raises:
        UsageError: the set has the same classes in another order, so that its labels are not the
            numbers of the logits.
    """
    of_set = None if train is None or train.images is None else train.images.classes
    if not of_set:
        return tuple(names) or None
    if {*of_set} == {*names} and tuple(of_set) != tuple(names):
        raise UsageError(
            f"{train and train.name} numbers its classes {', '.join(of_set[:3])}, ..., but the "
            f"logits of the model are in the order {', '.join(names[:3])}, .... Number them as the "
            "model does: images.of_classes(names, name)."
        )
    return None
