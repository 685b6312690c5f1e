"""The batches of an epoch: which images, in which order, augmented how."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from goen.data.augment import cut_out, random_crop_flip
from goen.data.imageset import ImageSet
from goen.training.config import TrainingConfig


def steps_per_epoch(train: ImageSet, config: TrainingConfig) -> int:
    return max(1, len(train) // config.batch_size)


def batches(
    train: ImageSet, config: TrainingConfig, epoch: int
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Augmented batches of one epoch, with the share of the epoch that is done before each."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    order = torch.randperm(len(train), generator=generator).numpy()
    size = min(config.batch_size, len(train))
    starts = range(0, len(train) - size + 1, size)  # a last short batch would upset the batch norm
    side = _side(config, epoch)
    for number, start in enumerate(starts):
        rows = order[start : start + size]
        images = torch.from_numpy(train.read(rows))
        flip = None
        if config.flip == "never":
            flip = torch.zeros(size, dtype=torch.bool)
        elif config.flip == "alternating":
            flip = torch.from_numpy((rows % 2) == (epoch % 2))
        images = random_crop_flip(
            images, generator, padding=config.padding, border=config.border, flip=flip
        )
        if config.cutout:
            images = cut_out(images, generator, config.cutout)
        if side is not None and side != images.shape[3]:
            smaller = interpolate(
                images.float(), size=(side, side), mode="bilinear", antialias=True
            )
            images = smaller / 255
        yield images, torch.from_numpy(train.labels[rows]), number / len(starts)


def _side(config: TrainingConfig, epoch: int) -> int | None:
    for epochs, side in config.sizes:
        if epoch < epochs:
            return side
        epoch -= epochs
    return None


def relative_cost(config: TrainingConfig, train: ImageSet, epoch: int) -> float:
    """Of a step in this epoch: its pixels, as a share of those of the images."""
    full = train.image_shape[-1]
    return ((_side(config, epoch) or full) / full) ** 2
