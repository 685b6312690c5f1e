"""Passes of a network over streams of inputs, for fits."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from goen.batch import Inputs, count_of, map_parts, take
from goen.data.input_spec import ImageInputs
from goen.data.inputs import BatchStream, first_inputs
from goen.detectors import Detector
from goen.errors import UsageError, warn
from goen.extraction import stream
from goen.features.deterministic import check_deterministic
from goen.features.new_classes import WithNewClasses
from goen.features.precomputed import Precomputed
from goen.functional.near_copies import NearCopies
from goen.gate.fitting.near_copies import TrainingRows, describe_near_copies
from goen.gate.fitting.sets import OOD
from goen.gate.threshold import COMPARED_IMAGES
from goen.models.placement import evaluating, placement
from goen.outputs import Outputs

ClassMeans: TypeAlias = Precomputed | WithNewClasses
"""A network with means of classes, to which training images are added."""


@dataclass(frozen=True)
class TrainingPass:
    """What a pass over the training images found.

    Attributes:
        count: of images.
        accuracy: of the classifier on them.
        rows: what is kept of them, to compare held-out images with.
    """

    count: int
    accuracy: float
    rows: TrainingRows


def _fit_detector(
    running: nn.Module, train: BatchStream, detector: Detector, class_means: ClassMeans | None
) -> TrainingPass:
    """Fit the detector to the training images, or update a fitted one.

    A detector that can be updated takes each batch as it comes; any other keeps the features that
    it reads until the end.
    """
    kept: list[Outputs] = []
    right = count = 0
    rows = TrainingRows(detector)
    for outputs in stream(running, train):
        labels = outputs.labels
        if labels is None:
            raise UsageError(
                f"{train.name} needs integer labels. Give a pair (images, labels), or batches of "
                "them."
            )
        right += int((outputs.logits.argmax(dim=1) == labels).sum())
        count += len(labels)
        rows.add(outputs)
        if detector.can_update:
            detector.update(outputs, labels)
        elif detector.needs_fit:
            kept.append(outputs.keep(detector.feature_names(outputs)))
        if class_means is not None:
            class_means.add(outputs.features, labels)
    if kept:
        whole = Outputs.concatenate(kept)
        assert whole.labels is not None  # each part has them
        detector.fit_training(whole, whole.labels)
    return TrainingPass(count, right / count, rows)


@dataclass(frozen=True)
class HeldOutPass:
    """The outputs of a set, and of its first few inputs, each passed by itself."""

    outputs: Outputs
    alone: Outputs

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def accuracy(self) -> float | None:
        """Of the classifier, if all inputs have a label."""
        outputs = self.outputs
        if outputs.labels is None:
            return None
        return float((outputs.logits.argmax(dim=1) == outputs.labels).double().mean())

    def rounding(self, detector: Detector) -> float:
        """The largest difference between the scores of one input alone and in a batch."""
        together = detector.score(self.outputs[: len(self.alone)])
        return float((detector.score(self.alone) - together).abs().max())


def gather(network: nn.Module, images: BatchStream, features: Collection[str]) -> HeldOutPass:
    """One pass over a set; the named features, logits, labels and properties are kept."""
    first, images = first_inputs(images)
    device = placement(network)[0]
    few = map_parts(lambda part: part[:COMPARED_IMAGES].to(device), first)
    with torch.no_grad():
        alone = Outputs.concatenate(
            network(take(few, slice(row, row + 1))).cpu().keep(features)
            for row in range(count_of(few))
        )
    measured = isinstance(images.spec, ImageInputs)
    parts = stream(network, images, with_properties=measured)
    whole = Outputs.concatenate(part.keep(features) for part in parts)
    return HeldOutPass(whole, alone)


@dataclass(frozen=True)
class Passes:
    """What the passes over the sets of a fit or an update gave.

    Attributes:
        train: of the training images, if there are any.
        others: of each other set, by its role.
    """

    train: TrainingPass | None
    others: Mapping[str, HeldOutPass]

    @property
    def ood(self) -> dict[str, Outputs]:
        """The outputs of each kind of OOD images."""
        roles = (role for role in self.others if role.startswith(OOD))
        return {role.removeprefix(OOD): self.others[role].outputs for role in roles}

    def near_copies(
        self, streams: Mapping[str, BatchStream], *, grouped: bool
    ) -> NearCopies | None:
        """Held-out images that lie near a training image or near each other; warns of them.

        ``None`` without training images.

        Args:
            streams: the sets, which were all read.
            grouped: whether the held-out images come in groups.
        """
        if self.train is None:
            return None
        near = self.train.rows.compare(self.others["held_out"].outputs, streams)
        for sentence in describe_near_copies(near, grouped=grouped):
            warn(sentence)
        return near


def run_passes(
    network: nn.Module,
    detector: Detector,
    streams: Mapping[str, BatchStream],
    class_means: ClassMeans | None = None,
) -> Passes:
    """One pass over each set: training images fit or update the detector, others are kept.

    Args:
        network: of the gate.
        detector: is fitted, or updated if it was fitted before.
        streams: by role.
        class_means: to which the training images are added, if they are given.
    """
    running = detector.prepare_network(network)
    train, trained = streams.get("train"), None
    with evaluating(network):
        if train is not None:
            trained = _fit_detector(running, train, detector, class_means)
        others = {
            role: gather(running, images, detector.features)
            for role, images in streams.items()
            if role != "train"
        }
    return Passes(trained, others)


def try_network(network: nn.Module, running: nn.Module, inputs: Inputs) -> Outputs:
    """The outputs for a few inputs.

    Args:
        network: of the gate.
        running: the same, prepared for the detector.
        inputs: two or more.

    Raises:
        UsageError: the model outputs probabilities in place of logits, or outputs that depend on
            more than the image.
    """
    device = placement(network)[0]
    placed = map_parts(lambda part: part.to(device), inputs)
    with torch.no_grad():
        outputs: Outputs = network(placed)
    logits = outputs.logits.double()
    within = bool(((logits >= 0) & (logits <= 1)).all())
    if within and bool(((logits.sum(dim=1) - 1).abs() < 1e-3).all()):
        raise UsageError(
            "The model's output lies in [0, 1] and adds up to 1: it ends in a softmax. goen needs "
            "the logits before it. Leave the softmax out, or return its logarithm."
        )
    # Logits of an untrained network may lie there too, but hardly near both ends.
    if within and bool(logits.min() < 0.1) and bool(logits.max() > 0.9):
        warn(
            "All outputs of the model lie in [0, 1]: are they probabilities of a sigmoid? goen "
            "needs the logits before it; else its confidences and the entropy mean little."
        )
    check_deterministic(running, take(placed, slice(COMPARED_IMAGES)))
    return outputs.cpu()
