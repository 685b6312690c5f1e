"""New classes in a gate: room for them in its detector and its class means."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from goen.errors import FitError, UsageError, first_of, warn
from goen.features.new_classes import WithNewClasses
from goen.features.precomputed import Precomputed
from goen.gate.base import BaseGate
from goen.gate.fitting.passes import Passes
from goen.outputs import Outputs

AnyGate = TypeVar("AnyGate", bound=BaseGate)


def with_new_classes(gate: AnyGate, names: Sequence[str]) -> AnyGate:
    """The gate with room for images of these classes, which are yet to come.

    It is one without an error rate or a threshold per class, for which its held-out images may not
    do. The gate that is given stays as it was.

    Raises:
        UsageError: names that it has, or a detector or network to which no class can be added.
    """
    added = tuple(map(str, names))
    twice = sorted({name for name in added if name in gate.classes or added.count(name) > 1})
    if twice or not all(added):
        raise UsageError(
            "new_classes are names that the gate does not have, each once; got "
            f"{first_of(twice, 5) if twice else 'an empty name'}."
        )
    classes = (*gate.classes, *added)
    detector = copy.deepcopy(gate.detector)
    if detector.class_sums() is None or not detector.can_update:
        raise UsageError(
            f"{detector} keeps no images or means of classes that a new one could join; goen_m and "
            "GOEN do. Train a classifier that knows the new classes, and fit the gate again."
        )
    network = _with_room(gate, len(classes))
    detector.add_classes(len(classes))
    return replace(
        gate,
        network=network,
        detector=detector,
        classes=classes,
        per_class=False,
        error_rate=None,
        compiled=None,
    )


def _with_room(gate: BaseGate, num_classes: int) -> nn.Module:
    """The network with the class means of the known classes, and none of the new ones."""
    network, detector = gate.network, gate.detector
    if isinstance(network, Precomputed) and network.has_logits:
        raise UsageError(
            "This gate was fitted on features with logits, and the classifier behind them does not "
            "know the new classes: fit a gate on the features alone."
        )
    if isinstance(network, Precomputed | WithNewClasses):
        return network.with_classes(num_classes)
    found = detector.class_sums()
    assert found is not None  # or no class can be added
    feature, known = detector.features[-1], len(gate.classes)
    wider = WithNewClasses(network, feature, found[0].shape[1], known, num_classes)
    wider.means.add_sums(*found)
    return wider


def check_new_classes(network: nn.Module, found: Passes, names: Sequence[str]) -> None:
    """Every new class has training images; warn of one that no held-out image is of.

    Raises:
        FitError: a class without training images.
    """
    means = network.means if isinstance(network, WithNewClasses) else network
    assert isinstance(means, Precomputed)
    first = means.num_classes - len(names)
    without = _absent(means.counts, first, names)
    if without:
        raise FitError(
            f"No training image is of {first_of(without, 5)}. The labels of new classes go on "
            f"after those of the gate: {names[0]} is {first}."
        )
    held_out: Outputs = found.others["held_out"].outputs
    labels = held_out.logits.argmax(dim=1) if held_out.labels is None else held_out.labels
    without = _absent(torch.bincount(labels, minlength=means.num_classes), first, names)
    if without:
        warn(
            f"No held-out image is of {first_of(without, 5)}: the false-alarm rate holds for "
            "images like the held-out ones. Give a random sample of new ID images, those of new "
            "classes among them; images that were picked because they were flagged are none."
        )


def _absent(counts: torch.Tensor, first: int, names: Sequence[str]) -> list[str]:
    return [name for name, count in zip(names, counts[first:].tolist(), strict=True) if not count]
