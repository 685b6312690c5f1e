"""Training the last part of a pretrained network, or all of it, for the classes of its probe."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from goen.checks import check_choice, check_number
from goen.data.imageset import ImageSet, require_disjoint
from goen.data.transforms.augment import random_crop_flip
from goen.errors import FitError
from goen.extraction import stream
from goen.features.extractor import FeatureExtractor
from goen.models.placement import placement
from goen.progress import bar

Tuned = Literal["last", "all"]
"""What is trained: the last quarter of the weight matrices, or all of them."""
_LAST_SHARE = 0.25
_SHIFT = 8  # images are shifted by up to an eighth of their side
_DECAY = 0.05


@dataclass(frozen=True)
class FineTuning:
    """How a network is trained further.

    Attributes:
        part: ``last``, the last quarter of its weight matrices, or ``all``.
        epochs: passes over the training images at most.
        learning_rate: of AdamW at the start; it falls to zero along a cosine.
        batch_size: of a step.
        seed: draws the order and the shifts of the images.
    """

    part: Tuned = "last"
    epochs: int = 5
    learning_rate: float = 1e-4
    batch_size: int = 32
    seed: int = 42

    def __post_init__(self) -> None:
        check_choice("part", self.part, get_args(Tuned))
        check_number("epochs", self.epochs, whole=True, at_least=1)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("batch_size", self.batch_size, whole=True, at_least=1)


def fine_tune(
    network: FeatureExtractor, train: ImageSet, validation: ImageSet, config: FineTuning
) -> tuple[FeatureExtractor, tuple[float, ...]]:
    """A copy of the network, trained further, and its log-loss on the validation images by epoch.

    The first loss is that of the network as it was given. The weights are those of the epoch with
    the smallest loss, which may be the network as it was. Batch norms keep their statistics, which
    small batches would only blur. Images are shifted and not mirrored, which would change digits.

    Args:
        network: of ``fit_probe``: its logits are those of the classes of ``train``.
        train: its training images.
        validation: others of the same classes, which choose the epoch.
        config: how.

    Raises:
        FitError: the loss is no longer finite.
        LeakError: an image in both sets.
    """
    require_disjoint(validation, train)
    tuned = copy.deepcopy(network).eval()
    weights = _trained_weights(tuned.model, config.part)
    optimiser = torch.optim.AdamW(weights.values(), config.learning_rate, weight_decay=_DECAY)
    size = min(config.batch_size, len(train))
    steps = config.epochs * (len(train) // size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(config.seed)
    losses = [_log_loss(tuned, validation, config.batch_size)]
    best = {name: weight.detach().clone() for name, weight in weights.items()}
    with bar() as progress:
        task = progress.add_task("fine-tuning", total=steps, status="steps")
        for _ in range(config.epochs):
            order = torch.randperm(len(train), generator=generator).numpy()
            for start in range(0, len(train) - size + 1, size):
                _step(tuned, train.take(order[start : start + size]), optimiser, generator)
                schedule.step()
                progress.advance(task)
            losses.append(_log_loss(tuned, validation, config.batch_size))
            if losses[-1] == min(losses):
                best = {name: weight.detach().clone() for name, weight in weights.items()}
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(best[name])
    tuned.requires_grad_(False)
    return tuned, tuple(losses)


def _trained_weights(model: nn.Module, part: Tuned) -> Mapping[str, nn.Parameter]:
    """Those that are trained, by name; all others are frozen."""
    named = [*model.named_parameters()]
    matrices = [name for name, weight in named if weight.ndim > 1]
    first = matrices[-max(1, round(_LAST_SHARE * len(matrices)))] if part == "last" else named[0][0]
    start = [name for name, _ in named].index(first)
    model.requires_grad_(False)
    for _, weight in named[start:]:
        weight.requires_grad_()
    return dict(named[start:])


def _step(
    network: FeatureExtractor,
    batch: ImageSet,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
) -> None:
    device = placement(network)[0]
    images, labels = torch.from_numpy(batch.read()), torch.from_numpy(batch.labels)
    still = torch.zeros(len(batch), dtype=torch.bool)
    padding = max(1, min(images.shape[2:]) // _SHIFT)
    shifted = random_crop_flip(images, generator, padding=padding, border="reflect", flip=still)
    loss: Tensor = cross_entropy(network(shifted.to(device)).logits, labels.to(device))
    if not bool(torch.isfinite(loss)):
        raise FitError(
            "The loss of fine-tuning is no longer finite. Give a smaller learning rate, or check "
            "the preprocessing."
        )
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def _log_loss(network: FeatureExtractor, images: ImageSet, batch_size: int) -> float:
    """The mean over the images."""
    total = 0.0
    for outputs in stream(network, images, batch_size=batch_size):
        assert outputs.labels is not None
        total += float(cross_entropy(outputs.logits.double(), outputs.labels, reduction="sum"))
    return total / len(images)
