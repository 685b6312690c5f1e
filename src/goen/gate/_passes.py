"""Passes of a network over streams of images: fitting a detector, and the cues of other images."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from goen.batch import Inputs, count_of, join_batches, map_parts, take
from goen.data.inputs import Batch, BatchStream
from goen.detectors import CueDetector
from goen.errors import FitError, GoenWarning, UsageError
from goen.extraction import run_network
from goen.functional.conformal import required_held_out
from goen.gate.held_out import COMPARED_IMAGES, one_by_one, score_rounding
from goen.models.placement import placement
from goen.outputs import Outputs

# The least number of images from which a mean and a spread can be estimated.
_FEWEST = 10


@dataclass(frozen=True)
class CuePass:
    """The results of one pass over N images.

    Attributes:
        cues: ``(N, K)``, of each detector.
        predicted: the classifier's labels, ``(N,)``.
        truth: the true labels, if all images have one.
        alone: cues of the first few images, each passed by itself, of each detector.
    """

    cues: tuple[Tensor, ...]
    predicted: Tensor
    truth: Tensor | None
    alone: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.predicted)

    @property
    def accuracy(self) -> float | None:
        """Of the classifier, if all images have a label."""
        if self.truth is None:
            return None
        return float((self.predicted == self.truth).double().mean())

    def rounding(self, detector: CueDetector) -> float:
        """The largest difference between scores of one image alone and in a batch.

        The detector is the last of those whose cues were computed.
        """
        return score_rounding(detector, self.cues[-1], self.alone[-1])


def measure_cues(network: nn.Module, images: BatchStream, *detectors: CueDetector) -> CuePass:
    """One pass over the images; only cues and labels are kept."""
    cues: list[list[Tensor]] = [[] for _ in detectors]
    predicted: list[Tensor] = []
    truths: list[Tensor] = []
    first, images = first_inputs(images)
    single = list(one_by_one(network, take(first, slice(COMPARED_IMAGES))))
    for outputs, truth in run_network(network, images, name=images.name, total=images.count):
        for detector, kept in zip(detectors, cues, strict=True):
            kept.append(detector.cues(outputs))
        predicted.append(outputs.logits.argmax(dim=1))
        if truth is not None:
            truths.append(truth)
    all_known = len(truths) == len(predicted)
    return CuePass(
        tuple(torch.cat(kept) for kept in cues),
        torch.cat(predicted),
        torch.cat(truths).cpu() if all_known else None,
        tuple(torch.cat([detector.cues(outputs) for outputs in single]) for detector in detectors),
    )


def split_held_out(count: int, false_alarm_rate: float) -> tuple[Tensor, Tensor]:
    """Rows of the held-out images that standardise the cues (3/5) and that set the threshold.

    One permutation, fixed by the count, so that a set sorted by class is split evenly.

    Raises:
        FitError: there are too few for the rate.
    """
    require_held_out(count, false_alarm_rate)
    order = torch.from_numpy(np.random.RandomState(0).permutation(count))
    return order[: 3 * count // 5], order[3 * count // 5 :]


def least_held_out(false_alarm_rate: float) -> int:
    """The fewest held-out images of a fit, of which two fifths set the threshold."""
    return max(5 * (required_held_out(false_alarm_rate) - 1) // 2 + 1, _FEWEST)


def require_held_out(count: int | None, false_alarm_rate: float) -> None:
    """Raise a FitError when so many held-out images cannot guarantee the rate."""
    needed = required_held_out(false_alarm_rate)
    least = least_held_out(false_alarm_rate)
    if count is not None and count < least:
        raise FitError(
            f"A false-alarm rate of {false_alarm_rate:g} needs at least {least} held-out images, "
            f"got {count}: three fifths standardise the cues, and the threshold needs {needed}. "
            "Hold out more, or allow a higher rate."
        )


def first_inputs(stream: BatchStream) -> tuple[Inputs, BatchStream]:
    """The first two inputs or more, and the same stream with them still in it."""
    batches = iter(stream)
    held: list[Batch] = []
    for batch in batches:
        held.append(batch)
        if sum(count_of(inputs) for inputs, _ in held) > 1:
            break
    first = join_batches([inputs for inputs, _ in held])

    def restarted() -> Iterator[Batch]:
        return chain(held, batches)

    return first, replace(stream, batches=restarted)


def count_classes(network: nn.Module, inputs: Inputs) -> int:
    """The number of logits; an error if the model outputs probabilities instead."""
    device = placement(network)[0]
    with torch.no_grad():
        outputs: Outputs = network(map_parts(lambda part: part.to(device), inputs))
    logits = outputs.logits.double()
    within = bool(((logits >= 0) & (logits <= 1)).all())
    if within and bool(((logits.sum(dim=1) - 1).abs() < 1e-3).all()):
        raise UsageError(
            "The model's output lies in [0, 1] and adds up to 1: it ends in a softmax. goen needs "
            "the logits before it. Leave the softmax out, or return its logarithm."
        )
    # Logits of an untrained network may lie there too, but hardly near both ends.
    if within and bool(logits.min() < 0.1) and bool(logits.max() > 0.9):
        warnings.warn(
            "All outputs of the model lie in [0, 1]: are they probabilities of a sigmoid? goen "
            "needs the logits before it; else its confidences and the entropy mean little.",
            GoenWarning,
            stacklevel=6,
        )
    return logits.shape[1]
