"""The batches of an epoch: which images, in which order, augmented how."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from goen.data.imageset import ImageSet
from goen.data.transforms.augment import cut_out, random_crop_flip
from goen.data.transforms.fractals import fractals
from goen.data.transforms.pixmix import pix_mix
from goen.models.backbone import TURNS
from goen.training.config import TrainingConfig

_FRACTALS = 2000
_drawn_once = lru_cache(maxsize=1)(fractals)


class TrainingBatch(NamedTuple):
    """Augmented images ``(B, 3, H, W)``, the labels ``(N,)`` of the first N, and more.

    Next come copies that are rotated for the rotation loss; ``turns`` ``(M,)`` counts the right
    angles of the first M. The images after those are outliers. ``done`` is the share of the epoch
    that is done before this batch.
    """

    images: Tensor
    labels: Tensor
    turns: Tensor
    done: float


def steps_per_epoch(train: ImageSet, config: TrainingConfig) -> int:
    return max(1, len(train) // config.batch_size)


def batches(
    train: ImageSet,
    config: TrainingConfig,
    epoch: int,
    rank: int = 0,
    processes: int = 1,
    outliers: ImageSet | None = None,
) -> Iterator[TrainingBatch]:
    """The batches of one epoch; of several processes the share of one.

    Shares are of one size: of a batch that cannot be divided so, the last images are left out.
    """
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    order = torch.randperm(len(train), generator=generator).numpy()
    size = min(config.batch_size, len(train))
    starts = range(0, len(train) - size + 1, size)  # a last short batch would upset the batch norm
    if rank:
        generator.manual_seed(config.seed * 1_000_003 + epoch + rank * 10**16)
    side = _side(config, epoch)
    patterns = None
    if config.pixmix:
        height, width = train.image_shape[-2:]
        patterns = _drawn_once(_FRACTALS, max(height, width), config.seed)[:, :, :height, :width]
    for number, start in enumerate(starts):
        rows = order[start : start + size][rank::processes][: size // processes]
        images = torch.from_numpy(train.read(rows))
        flip = None
        if config.flip == "never":
            flip = torch.zeros(len(rows), dtype=torch.bool)
        elif config.flip == "alternating":
            flip = torch.from_numpy((rows % 2) == (epoch % 2))
        images = random_crop_flip(
            images, generator, padding=config.padding, border=config.border, flip=flip
        )
        if config.cutout:
            images = cut_out(images, generator, config.cutout)
        if patterns is not None:
            images = pix_mix(images, patterns, generator, share=config.pixmix)
        images = _resized(images, side)
        turns = torch.zeros(len(rows), dtype=torch.int64)
        if config.rotation_loss:
            images, turns = _with_rotated(images, config.rotated, generator)
        if outliers is not None:
            drawn = torch.randint(len(outliers), (len(rows),), generator=generator).numpy()
            others = random_crop_flip(
                torch.from_numpy(outliers.read(drawn)),
                generator,
                padding=config.padding,
                border=config.border,
                flip=torch.zeros(len(rows), dtype=torch.bool) if config.flip == "never" else None,
            )
            images = torch.cat([images, _resized(others, side)])
        labels = torch.from_numpy(train.labels[rows])
        yield TrainingBatch(images, labels, turns, number / len(starts))


def _resized(images: Tensor, side: int | None) -> Tensor:
    """The images with sides of so many pixels, then floats in [0, 1]; or as they are."""
    if side is None or images.shape[2:] == (side, side):
        return images
    white = torch.iinfo(images.dtype).max
    return interpolate(images.float(), size=(side, side), mode="bilinear", antialias=True) / white


def _with_rotated(
    images: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The images and rotated copies of the first of them; the right angles of each.

    More copies than images begin again with the first: with a share of three every image comes in
    all four rotations, else the rotations are random.
    """
    count = max(1, round(share * len(images)))
    copies = images[torch.arange(count) % len(images)]
    if share == TURNS - 1:
        turns = 1 + torch.arange(count) // len(images)
    else:
        turns = torch.randint(1, TURNS, (count,), generator=generator)
    for turn in range(1, TURNS):
        copies[turns == turn] = copies[turns == turn].rot90(turn, (2, 3))
    none = torch.zeros(len(images), dtype=torch.int64)
    return torch.cat([images, copies]), torch.cat([none, turns])


def _side(config: TrainingConfig, epoch: int) -> int | None:
    for epochs, side in config.sizes:
        if epoch < epochs:
            return side
        epoch -= epochs
    return None


def relative_cost(config: TrainingConfig, train: ImageSet, epoch: int) -> float:
    """Of a step in this epoch: its pixels, as a share of those of the images."""
    side, (height, width) = _side(config, epoch), train.image_shape[-2:]
    return 1.0 if side is None else side**2 / (height * width)
