"""Random crop and flip, on whole uint8 batches at once."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from goen.errors import UsageError

Border = Literal["black", "reflect"]
"""What a crop shows beyond the rim of the image."""


def random_crop_flip(
    images: Tensor,
    generator: torch.Generator,
    *,
    padding: int = 4,
    border: Border = "black",
    flip: Tensor | None = None,
) -> Tensor:
    """Each image shifted by up to ``padding`` pixels each way and mirrored with probability ½.

    The paper's augmentation: pad by 4 pixels, crop the original size at a random place, flip. The
    pixels move once, as whole numbers, by a single gather for the whole batch.

    Args:
        images: ``(N, C, H, W)`` uint8 or uint16.
        generator: source of the randomness, on the CPU; two draws of N numbers and, without
            ``flip``, a third.
        padding: the largest shift in pixels.
        border: what comes in at the rim: black as in the paper, or the image mirrored.
        flip: ``(N,)`` which images to mirror, where the caller decides.

    Returns:
        A new tensor like the images, on their device.

    Example:
        >>> batch = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(1, 3, 8, 8)
        >>> no = torch.tensor([False])
        >>> still = random_crop_flip(batch, torch.Generator(), padding=0, flip=no)
        >>> bool((still == batch).all())
        True
    """
    count, _, height, width = images.shape
    if border == "reflect" and padding >= min(height, width):
        raise UsageError(f"A reflected border of {padding} needs images larger than that.")
    offsets = [torch.randint(2 * padding + 1, (count, 1), generator=generator) for _ in range(2)]
    if flip is None:
        flip = torch.rand(count, generator=generator) < 0.5
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(flip[:, None].cpu(), columns.flip(1), columns) + offsets[1]
    rows = torch.arange(height) + offsets[0]
    if border == "reflect":
        rows = _mirror(rows - padding, height)
        columns = _mirror(columns - padding, width)
    elif padding:
        images = pad(images, (padding, padding, padding, padding))
    place = (rows[:, :, None] * images.shape[3] + columns[:, None, :]).view(count, 1, -1)
    # torch cannot gather uint16; the same bits as int16 it can.
    deep = images.dtype == torch.uint16
    flat = (images.view(torch.int16) if deep else images).flatten(2)
    gathered = flat.gather(2, place.to(images.device).expand(-1, flat.shape[1], -1))
    moved = gathered.view(count, -1, height, width)
    return moved.view(torch.uint16) if deep else moved


def cut_out(images: Tensor, generator: torch.Generator, side: int) -> Tensor:
    """Each image with a square of mid-grey at a random place, wholly within the image.

    Source: DeVries & Taylor, Improved Regularization of Convolutional Neural Networks with Cutout
    (2017). Departs from it: the square is never cut off at the rim.

    Args:
        images: ``(N, 3, H, W)`` uint8.
        generator: source of the randomness, on the CPU; two draws of N numbers.
        side: of the square, in pixels.

    Example:
        >>> grey = cut_out(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.Generator(), 4)
        >>> int((grey == 128).sum())
        48
    """
    count, _, height, width = images.shape
    if side > min(height, width):
        raise UsageError(f"A square of {side} pixels does not fit images of {height}×{width}.")
    inside = []
    for size in (height, width):
        start = torch.randint(size - side + 1, (count, 1), generator=generator)
        place = torch.arange(size)
        inside.append((place >= start) & (place < start + side))
    square = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return images.masked_fill(square.to(images.device), 128)


def _mirror(index: Tensor, size: int) -> Tensor:
    """Positions outside ``0..size-1`` reflected at the rim, the rim itself not repeated."""
    return (size - 1) - ((size - 1) - index.abs()).abs()
