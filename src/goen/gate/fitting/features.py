"""Fitting a gate to features somebody already has, with or without a classifier's logits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goen.data.inputs import Array, BatchStream, as_stream, tensors
from goen.detectors import Detector, GoenM
from goen.errors import UsageError
from goen.features.precomputed import LOGITS, Features, Precomputed, as_features, renamed
from goen.gate.fitting.fit import AnyGate, fit_gate
from goen.gate.fitting.groups import Groups
from goen.gate.fitting.sets import FitSets
from goen.io.limits import CLASSES
from goen.outputs import Outputs

# Rows that are added to the class means at once.
_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class GivenFeatures:
    """The features that a gate is fitted on; see ``Gate.fit_outputs``."""

    train: Features
    labels: Array | None
    held_out: Features
    held_out_labels: Array | None
    calibration: Features | float | None
    ood: Features | Mapping[str, Features] | None
    groups: Groups | None = None


def fit_to_features(
    make: Callable[..., AnyGate],
    given: GivenFeatures,
    detector: Detector | None,
    *,
    false_alarm_rate: float,
    classes: Sequence[str] | None,
    batch_size: int,
) -> AnyGate:
    """A gate for these features; see ``Gate.fit_outputs``."""
    training = _checked("train", as_features(given.train))
    numbers = _labels(training, given.labels, classes)
    if not len(numbers):
        raise UsageError("train: there are no rows to fit a gate to.")
    train = as_stream((training, numbers), "train", batch_size, "tensors")
    network = _network(given.train, training, numbers, classes)
    known = [*network.widths, *([LOGITS] if network.has_logits else [])]

    def stream(name: str, rows: Features, labels: Array | None = None) -> BatchStream:
        parts = _checked(name, renamed(as_features(rows), known))
        return as_stream(parts if labels is None else (parts, labels), name, batch_size, "tensors")

    is_classifier = network.has_logits and network.num_classes > 1
    if detector is None:
        detector = GoenM(logit_cues=("entropy",) if is_classifier else ())
    _check_detector(detector, network)
    held_out, calibration, ood = given.held_out, given.calibration, given.ood
    true_labels = _own_labels(held_out)
    if given.held_out_labels is not None:
        true_labels = _whole_numbers("held_out", given.held_out_labels)
    others: dict[str, Any] = {} if ood is None else {"ood": ood}
    if isinstance(ood, Mapping) and {*ood} != {*known}:  # with these names it is one kind
        others = {str(kind): rows for kind, rows in ood.items()}
    sets = FitSets.open(
        detector,
        train,
        stream("held_out", held_out, true_labels),
        calibration
        if isinstance(calibration, float | None)
        else stream("calibration", calibration, _own_labels(calibration)),
        {kind: stream(kind, rows) for kind, rows in others.items()},
        false_alarm_rate=false_alarm_rate,
        batch_size=batch_size,
        inputs="tensors",
    ).in_groups(given.groups)
    nothing_known = given.labels is None and network.num_classes == 1 and not network.has_logits
    default = ("known",) if nothing_known else ()
    names = default if classes is None else classes
    return fit_gate(make, network, detector, sets, classes=names, made_from="features")


def _check_detector(detector: Detector, network: Precomputed) -> None:
    """Raise a ``UsageError`` unless features, and logits if there are any, are all it reads."""
    if detector.needs_gradient:
        raise UsageError(
            f"{detector} takes gradients of a network, and features have none. Fit it to the model "
            "and its images (Gate.fit; --model and --train), or choose another detector."
        )
    reads_logits = not hasattr(detector, "feature") or detector.needs_ood  # some candidates do
    if not network.has_logits and reads_logits:
        raise UsageError(
            f"{detector} reads the logits of a classifier, and there are none beside the features. "
            f"Give them ({LOGITS}), or choose a detector of features, such as goen_m or knn."
        )


def _network(
    given: Features, train: Mapping[str, Array], labels: Array, classes: Sequence[str] | None
) -> Precomputed:
    """What stands for the network of these features."""
    widths = {name: int(part.shape[1]) for name, part in train.items() if name != LOGITS}
    if LOGITS in train:
        classifier = given.classifier if isinstance(given, Outputs) else None
        return Precomputed(
            widths, int(train[LOGITS].shape[1]), has_logits=True, classifier=classifier
        )
    count = int(labels.max()) + 1 if classes is None else len(classes)
    if count > CLASSES:
        raise UsageError(f"Labels number the classes from 0; got {count - 1:,}. Are they labels?")
    if int(labels.min()) < 0 or int(labels.max()) >= count:
        raise UsageError(
            f"Labels lie in 0 .. {count - 1} for {count} classes, got {int(labels.min())} .. "
            f"{int(labels.max())}."
        )
    network = Precomputed(widths, count, has_logits=False)
    for start in range(0, len(labels), _ROWS):
        rows = slice(start, start + _ROWS)
        parts = tensors(train, rows)
        network.add(parts, torch.as_tensor(labels[rows]))  # type: ignore[arg-type]
    return network


def _checked(name: str, parts: Mapping[str, Array]) -> dict[str, Array]:
    for part, values in parts.items():
        is_float = tensors(values[:1]).is_floating_point()  # type: ignore[union-attr]
        if values.ndim != 2 or not values.shape[1] or not is_float:
            raise UsageError(
                f"{name}: {part} should be an array (N, D) of floats, got {tuple(values.shape)} of "
                f"{values.dtype}."
            )
    return dict(parts)


def _labels(
    train: Mapping[str, Array], labels: Array | None, classes: Sequence[str] | None
) -> Array:
    """The labels; without any the classifier's own, or one class for all."""
    if labels is not None:
        return _whole_numbers("train", labels)
    if LOGITS in train:
        return tensors(train[LOGITS]).argmax(dim=1)  # type: ignore[union-attr]
    if classes is not None and len(classes) > 1:
        raise UsageError(f"{len(classes)} classes need labels; without labels there is one class.")
    return torch.zeros(len(next(iter(train.values()))), dtype=torch.int64)


def _own_labels(rows: Features) -> Array | None:
    return rows.labels if isinstance(rows, Outputs) else None


def _whole_numbers(name: str, labels: Array) -> Array:
    values = labels.numpy(force=True) if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise UsageError(f"{name}: labels are whole numbers (N,), got {values.dtype}.")
    return values.astype(np.int64)
