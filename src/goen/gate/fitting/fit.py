"""Fitting a gate: one pass over each set; no image is kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from logging import getLogger
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from goen.data.input_spec import ImageInputs, InputSpec
from goen.data.inputs import BatchStream, image_hashes, require_disjoint_streams
from goen.detectors import Best, Detector
from goen.errors import UsageError, first_of, warn
from goen.features.extractor import FeatureExtractor
from goen.features.precomputed import Precomputed
from goen.gate.base import BaseGate
from goen.gate.decision import require_finite
from goen.gate.fitting.groups import require_one_each
from goen.gate.fitting.passes import HeldOutPass, Passes, TrainingPass, run_passes, try_network
from goen.gate.fitting.sets import (
    OOD,
    FitSets,
    describe_stream,
    split_held_out,
    warn_of_copies,
)
from goen.gate.threshold import (
    Answers,
    FitDiagnostics,
    HeldOut,
    is_clearly_above,
    is_near_chance,
    near_chance,
    warn_of_ties,
)
from goen.io.manifest import JsonObject
from goen.models import ARCHITECTURES, Backbone
from goen.models.flip_averaging import FlipAveraged
from goen.models.placement import evaluating, placement

# On its own training images; most classifiers that anybody uses are above.
_LOW_ACCURACY = 0.5
SELECTION = "selection "
"""What the role of OOD images begins with that chose the detector and are not reported on."""
_log = getLogger(__name__)
AnyGate = TypeVar("AnyGate", bound=BaseGate)


def fit_gate(
    make: Callable[..., AnyGate],
    network: nn.Module,
    detector: Detector,
    sets: FitSets,
    *,
    classes: Sequence[str],
    made_from: str,
) -> AnyGate:
    """A gate, an object of ``make``, of this network and a detector, which is fitted anew.

    ``made_from`` is where the model comes from, for the manifest.
    """
    detector.require_library()  # before the images pass through the network
    detector.forget()  # what it was fitted on before may be among the held-out images
    with evaluating(network):
        outputs = try_network(network, detector.prepare_network(network), sets.first)
        names = name_classes(classes, outputs.logits.shape[1])
        if not detector.needs_fit:
            detector.fit_training(outputs, torch.zeros(len(outputs), dtype=torch.int64))
        found = run_passes(network, detector, sets.streams)
    require_disjoint_streams(sets.streams)  # of iterables only now all images are known
    train, held_out = found.train, found.others["held_out"]
    _warn_of_accuracy(train, held_out, len(names), is_model=not isinstance(network, Precomputed))
    warn_of_copies(sets.streams["held_out"])
    if not found.ood and detector.uses_ood:
        _log.info(
            "No OOD images were given: the gate decides by its p-values, with the same guarantee, "
            "and it returns no probability."
        )
    threshold, diagnostics = calibrate(
        detector, found, sets.share, sets.false_alarm_rate, sets.groups
    )
    grouped = sets.groups is not None
    roles = {
        role: role.replace(OOD, SELECTION, 1) if detector.needs_ood else role
        for role in sets.streams
    }
    measured = {"train": train.accuracy if train else None, "held_out": held_out.accuracy}
    return make(
        network=network,
        detector=detector.chosen,
        held_out=threshold,
        false_alarm_rate=sets.false_alarm_rate,
        classes=names,
        inputs=sets.spec,
        metadata={
            "model": made_from,
            "splits": {roles[role]: describe_stream(s) for role, s in sets.streams.items()},
            **describe_choice(detector),
            **{f"{k}_accuracy": value for k, value in measured.items() if value is not None},
        },
        image_hashes={roles[r]: image_hashes(s.digests()) for r, s in sets.streams.items()},
        diagnostics=replace(
            diagnostics, near_copies=found.near_copies(sets.streams, grouped=grouped)
        ),
    )


def describe_choice(detector: Detector) -> JsonObject:
    """What a detector that chooses found, for the gate's metadata; nothing of any other."""
    if not isinstance(detector, Best):
        return {}
    return {"selection": {**detector.ranking_.to_json(), "left_out": dict(detector.skipped_)}}


def calibrate(
    detector: Detector,
    found: Passes,
    share: float,
    false_alarm_rate: float,
    groups: NDArray[np.int64] | None = None,
) -> tuple[HeldOut, FitDiagnostics]:
    """Calibrate the detector, and set the threshold with what is left of the held-out images.

    Args:
        detector: fitted.
        found: the outputs of all sets.
        share: of the held-out images, those that calibrate.
        false_alarm_rate: of the gate.
        groups: of the held-out images, if they come in groups.
    """
    held_out = found.others["held_out"]
    outputs = held_out.outputs
    require_finite(outputs, detector)
    if groups is not None:
        require_one_each(groups, len(held_out))  # of an iterable the count is known only now
    calibrating, rows = split_held_out(len(held_out), share, false_alarm_rate, groups)
    if "calibration" in found.others:
        detector.recalibrate(found.others["calibration"].outputs, found.ood)
    elif share:
        detector.recalibrate(outputs[calibrating], found.ood)
    reported = {} if detector.needs_ood else found.ood
    detector = detector.chosen
    cues = detector.cues(outputs)
    truth = outputs.labels
    sets_threshold = torch.zeros(len(held_out), dtype=torch.bool)
    sets_threshold[rows] = True
    diagnostics = FitDiagnostics(
        scores=detector.score_cues(cues).numpy(),
        cues=cues.numpy(),
        predicted=outputs.logits.argmax(dim=1).numpy(),
        truth=None if truth is None else truth.numpy(),
        sets_threshold=sets_threshold.numpy(),
        ood_scores={kind: detector.score(reported[kind]).numpy() for kind in reported},
    )
    rounding = held_out.rounding(detector)
    threshold = HeldOut.from_cues(
        detector,
        cues[rows],
        answers=Answers.of(detector, outputs[rows], None if truth is None else truth[rows]),
        properties=None if outputs.properties is None else outputs.properties[rows],
        rounding=rounding,
        groups=None if groups is None else groups[rows.numpy()],
    )
    warn_of_ties(threshold, detector.score_cues(cues[rows]).numpy(), false_alarm_rate)
    return threshold, diagnostics


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
            warn(near_chance(accuracy, num_classes, name))
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

    goen's own network outputs its features itself, and its gate can be loaded without a model; see
    ``read_own_features``.
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
        and {*own_features(extractor.layers)} <= own_names(model)
    ):
        network = model
    return FlipAveraged(network) if flip_averaging else network


def own_names(network: Backbone) -> set[str]:
    """The features of goen's own network that are layers of it, by the names that it gives them."""
    z = () if network.projection is None else ("z",)
    return {*(scale.name for scale in network.scales), *z}


def own_features(layers: Sequence[str]) -> tuple[str, ...]:
    """What goen's own network calls the features of these layers."""
    return tuple("z" if layer == "projection" else layer for layer in layers)


def read_own_features(detector: Detector, layers: Sequence[str]) -> None:
    """Let a detector that was given no feature read those of the layers that were chosen.

    goen's own network outputs more than these.
    """
    if getattr(detector, "feature", ()) is None and not detector.needs_classifier:
        chosen = own_features(layers)
        detector.feature = chosen if detector.reads_all_features else chosen[-1]  # type: ignore[attr-defined]


def name_classes(given: Sequence[str], count: int) -> tuple[str, ...]:
    """The names given, else numbers; as many as there are logits."""
    names = tuple(map(str, given)) or tuple(map(str, range(count)))
    if len(names) != count:
        raise UsageError(
            f"The model has {count} logits, but there are {len(names)} class names "
            f"({first_of(names, 5)}). Give one class name for each logit, in their order."
        )
    return names


def own_classes(names: Sequence[str], train: BatchStream | None) -> tuple[str, ...]:
    """The class names of the training set, else those of the model's own config.

    Raises:
        UsageError: the set has the same classes in another order, so that its labels are not the
            numbers of the logits.
    """
    if train is None or train.images is None or not train.images.classes:
        return tuple(names)
    of_set = train.images.classes
    if {*of_set} == {*names} and of_set != tuple(names):
        raise UsageError(
            f"{train.name} numbers its classes {', '.join(of_set[:3])}, ..., but the logits of the "
            f"model are in the order {', '.join(names[:3])}, .... Number them as the model does: "
            "images.of_classes(names, name)."
        )
    return of_set
