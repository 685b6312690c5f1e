"""Fitting a gate to features somebody already has, with or without a classifier's logits."""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from goen.data.feature_files import FEATURES
from goen.data.inputs import Array, BatchStream, as_stream, tensors
from goen.data.kinds import ImageInputs
from goen.detectors import GoenM
from goen.errors import UsageError
from goen.gate.fit import FitSets, fit_gate
from goen.gate.gate import Gate
from goen.gate.partial import PartialFit
from goen.models.precomputed import LOGITS, Precomputed
from goen.outputs import Outputs
from goen.runs.limits import CLASSES

Features: TypeAlias = Outputs | Mapping[str, Array] | Array
"""``Outputs``, arrays ``(N, D)`` by name (``logits`` are the classifier's), or one array."""


def as_features(given: Features) -> dict[str, Array]:
    """The arrays by name; logits, if there are any, as ``logits``.

    Raises:
        UsageError: something that holds no features.
    """
    if isinstance(given, Outputs):
        return {**given.features, LOGITS: given.logits}
    if isinstance(given, (Tensor, np.ndarray)):
        return {FEATURES: given}
    known = isinstance(given, Mapping) and all(
        isinstance(part, (Tensor, np.ndarray)) for part in given.values()
    )
    if not known or not given:
        raise UsageError(
            "Features are Outputs, an array (N, D), or a dict of such arrays by name; got a "
            f"{type(given).__name__}."
        )
    return dict(given)


def fit_to_outputs(
    train: Features | PartialFit,
    labels: Array | None,
    held_out: Features,
    *,
    held_out_labels: Array | None,
    ood: Features | Mapping[str, Features] | None,
    false_alarm_rate: float,
    classes: Sequence[str] | None,
    batch_size: int,
) -> Gate:
    """A gate for these features; see ``Gate.fit_outputs``."""
    network, training = _opened(train, labels, classes, batch_size)
    known = [*network.widths, *([LOGITS] if network.has_logits else [])]
    holding = _checked("held_out", renamed(as_features(held_out), known))
    kept = None if held_out_labels is None else _whole_numbers("held_out", held_out_labels)
    sets = FitSets.open(
        training,
        _stream("held_out", holding, kept, batch_size),
        {
            name: _stream(name, _checked(name, parts), None, batch_size)
            for name, parts in _kinds(ood, known).items()
        },
        false_alarm_rate=false_alarm_rate,
        batch_size=batch_size,
        inputs="tensors",
    )
    names = classes
    if names is None and labels is None and network.num_classes == 1 and not network.has_logits:
        names = ("known",)
    is_classifier = network.has_logits and network.num_classes > 1
    return fit_gate(
        network,
        GoenM(tuple(network.widths), logit_cues=("entropy",) if is_classifier else ()),
        sets,
        false_alarm_rate=false_alarm_rate,
        classes=names,
        made_from="features",
    )


def _opened(
    train: Features | PartialFit,
    labels: Array | None,
    classes: Sequence[str] | None,
    batch_size: int,
) -> tuple[Precomputed, BatchStream | PartialFit]:
    """What stands for the network, and the training rows, if they were not read before."""
    if not isinstance(train, PartialFit):
        stream, numbers, parts = open_features(train, labels, classes, batch_size)
        return features_network(parts, numbers, classes), stream
    if labels is not None:
        raise UsageError("The training rows were read before, with their labels: give no others.")
    if isinstance(train.kind, ImageInputs) or train.recorded:
        raise UsageError("These parts were read from images: give them to Gate.fit.")
    bank = train.bank
    widths = {layer: bank.width(layer) for layer in bank.layers}
    return Precomputed(widths, bank.num_classes, has_logits=LOGITS in train.kind.parts), train


def open_features(
    train: Features, labels: Array | None, classes: Sequence[str] | None, batch_size: int
) -> tuple[BatchStream, Array, dict[str, Array]]:
    """Training rows as a stream, their labels, and their features by name."""
    training = _checked("train", as_features(train))
    numbers = _labels(training, labels, classes)
    return as_stream((training, numbers), "train", batch_size, "tensors"), numbers, training


def features_network(
    train: Mapping[str, Array], labels: Array, classes: Sequence[str] | None
) -> Precomputed:
    """What stands for the network of these features."""
    widths = {name: int(part.shape[1]) for name, part in train.items() if name != LOGITS}
    if LOGITS in train:
        return Precomputed(widths, int(train[LOGITS].shape[1]), has_logits=True)
    count = int(labels.max()) + 1 if classes is None else len(classes)
    if count > CLASSES:
        raise UsageError(f"Labels number the classes from 0; got {count - 1:,}. Are they labels?")
    if int(labels.min()) < 0 or int(labels.max()) >= count:
        raise UsageError(
            f"Labels lie in 0 .. {count - 1} for {count} classes, got {int(labels.min())} .. "
            f"{int(labels.max())}."
        )
    return Precomputed(widths, count, has_logits=False)


def _stream(
    name: str, parts: Mapping[str, Array], labels: Array | None, batch_size: int
) -> BatchStream:
    if labels is None:
        return as_stream(parts, name, batch_size, "tensors")
    return as_stream((parts, labels), name, batch_size, "tensors")


def _kinds(
    ood: Features | Mapping[str, Features] | None, train: Collection[str]
) -> dict[str, dict[str, Array]]:
    """Each kind of OOD by its name; a dict with the names of the features is one kind."""
    if ood is None:
        return {}
    if isinstance(ood, Mapping) and {*ood} != {*train}:
        return {str(name): renamed(as_features(part), train) for name, part in ood.items()}
    return {"ood": renamed(as_features(ood), train)}  # type: ignore[arg-type]


def renamed(parts: dict[str, Array], known: Collection[str]) -> dict[str, Array]:
    """The parts, of which an array without a name gets that of the only known feature."""
    names = [name for name in known if name != LOGITS]
    return {names[0]: parts[FEATURES]} if [*parts] == [FEATURES] and len(names) == 1 else parts


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


def _whole_numbers(name: str, labels: Array) -> Array:
    values = labels.numpy(force=True) if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise UsageError(f"{name}: labels are whole numbers (N,), got {values.dtype}.")
    return values.astype(np.int64)
