"""A network over streams of images: what training learns, and the cues of everything else."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from goen.data.inputs import Batch, Feed
from goen.detectors.goen_m import Monotone
from goen.errors import FitError, UsageError
from goen.extraction import run
from goen.functional.conformal import required_held_out
from goen.models.placement import placement
from goen.outputs import Outputs

# The least number of images with which a mean and a spread say anything.
_FEWEST = 10
# Enough to see what rounding does, few enough to cost nothing.
_ALONE = 8


def learn(scorer: Monotone, network: nn.Module, train: Feed) -> int:
    """Stream the training images through the scorer's statistics; how many there were."""
    count = 0
    for outputs, labels in run(network, train, name=train.name, total=train.count):
        if labels is None:
            raise UsageError(
                f"{train.name} needs labels, whole numbers: every class has its share of the "
                "images that are kept. Give a pair (images, labels), or batches of them."
            )
        scorer.update(outputs.keep(scorer.needs), labels)
        count += len(outputs)
    return count


@dataclass(frozen=True)
class Seen:
    """What was seen of N images: cues ``(N, K)`` by each scorer asked, the classifier's answers.

    ``alone`` has the cues of the first few again, each image seen by itself.
    """

    cues: tuple[Tensor, ...]
    label: Tensor
    truth: Tensor | None
    alone: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.label)

    @property
    def accuracy(self) -> float | None:
        """Of the classifier, where the truth is known."""
        if self.truth is None:
            return None
        return float((self.label == self.truth).double().mean())

    def rounding(self, scorer: Monotone) -> float:
        """How far the last scorer's scores of one image lie apart, alone and in a batch."""
        alone = self.alone[-1]
        together = self.cues[-1][: len(alone)]
        return float((scorer.judge(alone)[0] - scorer.judge(together)[0]).abs().max())


def look(network: nn.Module, images: Feed, *scorers: Monotone) -> Seen:
    """One pass over the images; only cues and labels are kept."""
    cues: list[list[Tensor]] = [[] for _ in scorers]
    labels: list[Tensor] = []
    truths: list[Tensor] = []
    first, images = peek(images)
    device = placement(network)[0]
    with torch.no_grad():
        single = [network(image[None].to(device)) for image in first[:_ALONE]]
    for outputs, truth in run(network, images, name=images.name, total=images.count):
        for scorer, kept in zip(scorers, cues, strict=True):
            kept.append(scorer.cues(outputs))
        labels.append(outputs.logits.argmax(dim=1))
        if truth is not None:
            truths.append(truth)
    known = len(truths) == len(labels)
    return Seen(
        tuple(torch.cat(kept) for kept in cues),
        torch.cat(labels),
        torch.cat(truths).cpu() if known else None,
        tuple(torch.cat([scorer.cues(outputs.cpu()) for outputs in single]) for scorer in scorers),
    )


def parted(count: int, false_alarm_rate: float) -> tuple[Tensor, Tensor]:
    """Which of the held-out images standardise the cues (3/5), and which give the threshold (2/5).

    One permutation that the count fixes, so that a set sorted by class is parted evenly.

    Raises:
        FitError: there are too few for the rate.
    """
    check_enough(count, false_alarm_rate)
    order = torch.from_numpy(np.random.RandomState(0).permutation(count))
    return order[: 3 * count // 5], order[3 * count // 5 :]


def check_enough(count: int | None, false_alarm_rate: float) -> None:
    """Raise a FitError when so many held-out images cannot guarantee the rate."""
    needed = required_held_out(false_alarm_rate)
    least = max(5 * (needed - 1) // 2 + 1, _FEWEST)
    if count is not None and count < least:
        raise FitError(
            f"A false-alarm rate of {false_alarm_rate:g} needs at least {least} held-out images, "
            f"got {count}: three fifths standardise the cues, and the threshold needs {needed}. "
            "Hold out more, or allow a higher rate."
        )


def peek(feed: Feed) -> tuple[Tensor, Feed]:
    """The first two images or more, and the same stream with them still in it."""
    stream = iter(feed)
    held: list[Batch] = []
    for batch in stream:
        held.append(batch)
        if sum(len(images) for images, _ in held) > 1:
            break
    first = torch.cat([images for images, _ in held])

    def batches() -> Iterator[Batch]:
        return chain(held, stream)

    return first, replace(feed, batches=batches)


def check_logits(network: nn.Module, images: Tensor) -> int:
    """The number of classes; an error if the model gives probabilities in place of logits."""
    with torch.no_grad():
        outputs: Outputs = network(images.to(placement(network)[0]))
    logits = outputs.logits.double()
    within = bool(((logits >= 0) & (logits <= 1)).all())
    if within and bool(((logits.sum(dim=1) - 1).abs() < 1e-3).all()):
        raise UsageError(
            "The model's output lies in [0, 1] and adds up to 1: it ends in a softmax. goen wants "
            "the logits before it. Leave the softmax out, or return its logarithm."
        )
    return logits.shape[1]
