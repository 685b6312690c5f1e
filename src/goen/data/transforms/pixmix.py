"""PixMix: images mixed with fractals and with augmented copies of themselves."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from goen.errors import UsageError

# At most so many mixtures, one on the other; how much of the image stays; and how strong an
# operation is, of ten: the paper's.
ROUNDS, STRENGTH, SEVERITY = 4, 3.0, 3.0
_LEVELS = 10
# What stands for 0 to a negative power.
_TINY = 1e-37

Operation = Callable[[Image.Image, float], Image.Image]


def _moved(matrix: Callable[[float, Image.Image], tuple[float, ...]]) -> Operation:
    """An affine map whose six numbers depend on the level, which may be negative."""

    def move(image: Image.Image, level: float) -> Image.Image:
        return image.transform(
            image.size, Image.Transform.AFFINE, matrix(level, image), Image.Resampling.BILINEAR
        )

    return move


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, level: kind(image).enhance(abs(level) * 1.8 / _LEVELS + 0.1)


OPERATIONS: Mapping[str, Operation] = {
    "autocontrast": lambda image, level: ImageOps.autocontrast(image),
    "equalise": lambda image, level: ImageOps.equalize(image),
    "posterise": lambda image, level: ImageOps.posterize(image, 4 - int(abs(level) * 4 / _LEVELS)),
    "rotate": lambda image, level: image.rotate(
        int(level * 30 / _LEVELS), resample=Image.Resampling.BILINEAR
    ),
    "solarise": lambda image, level: ImageOps.solarize(
        image, 256 - int(abs(level) * 256 / _LEVELS)
    ),
    "shear_x": _moved(lambda level, image: (1, level * 0.3 / _LEVELS, 0, 0, 1, 0)),
    "shear_y": _moved(lambda level, image: (1, 0, 0, level * 0.3 / _LEVELS, 1, 0)),
    "translate_x": _moved(
        lambda level, image: (1, 0, int(level * image.width / 3 / _LEVELS), 0, 1, 0)
    ),
    "translate_y": _moved(
        lambda level, image: (1, 0, 0, 0, 1, int(level * image.height / 3 / _LEVELS))
    ),
    "colour": _enhanced(ImageEnhance.Color),
    "contrast": _enhanced(ImageEnhance.Contrast),
    "brightness": _enhanced(ImageEnhance.Brightness),
    "sharpness": _enhanced(ImageEnhance.Sharpness),
}
"""The operations of AugMix, all thirteen, by name; each takes an image and a level in [-10, 10]."""


def pix_mix(
    images: Tensor, patterns: Tensor, generator: torch.Generator, *, share: float = 1.0
) -> Tensor:
    """Images mixed up to four times with a pattern or with an augmented copy of themselves.

    Half of the images are augmented first, by one random operation. Then follow 0 to 4 mixtures,
    each a weighted sum or product with, at even odds, another augmented copy or the image's
    pattern.

    Paper: Hendrycks et al. 2022, "PixMix: Dreamlike Pictures Comprehensively Improve Safety
    Measures"; operations of Hendrycks et al. 2020, "AugMix". Departs from the paper: the patterns
    are those given, such as ``fractals``; theirs were collected from the web, with feature
    visualisations among them.

    Args:
        images: ``(N, 3, H, W)`` uint8.
        patterns: ``(M, 3, H, W)`` uint8.
        generator: source of the randomness, on the CPU.
        share: of the images to which this is done.

    Example:
        >>> grey = torch.full((4, 3, 8, 8), 128, dtype=torch.uint8)
        >>> pix_mix(grey, grey, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3, 8, 8])
    """
    if images.dtype != torch.uint8 or images.shape[1] != 3:
        raise UsageError(
            "PixMix takes colour images of 8 bits, (N, 3, H, W) uint8; got "
            f"{tuple(images.shape)} {images.dtype}. Set pixmix to 0."
        )
    count = len(images)
    chosen = torch.rand(count, generator=generator) < share
    rounds = torch.randint(ROUNDS + 1, (count,), generator=generator)
    own = patterns[torch.randint(len(patterns), (count,), generator=generator)].float() / 255
    first = torch.rand(count, generator=generator) < 0.5
    values = augmented(images, chosen & first, generator).float() / 255
    for number in range(ROUNDS):
        active = chosen & (rounds > number)
        copied = torch.rand(count, generator=generator) < 0.5
        copy = augmented(images, active & copied, generator).float() / 255
        partner = torch.where(copied[:, None, None, None], copy, own)
        new = mix(values, partner, generator).clamp(0, 1)
        values = torch.where(active[:, None, None, None], new, values)
    return (values * 255).round().to(torch.uint8)


def augmented(images: Tensor, where: Tensor, generator: torch.Generator) -> Tensor:
    """Each image ``(N, 3, H, W)`` uint8 after one random operation, if ``where`` is true."""
    count, names = len(images), tuple(OPERATIONS)
    kinds = torch.randint(len(names), (count,), generator=generator)
    levels = 0.1 + (SEVERITY - 0.1) * torch.rand(count, generator=generator)
    levels = torch.where(torch.rand(count, generator=generator) < 0.5, levels, -levels)
    images = images.clone()
    for row in torch.nonzero(where)[:, 0].tolist():
        image = Image.fromarray(images[row].permute(1, 2, 0).numpy())
        changed = OPERATIONS[names[int(kinds[row])]](image, float(levels[row]))
        images[row] = torch.from_numpy(np.array(changed)).permute(2, 0, 1)
    return images


def mix(values: Tensor, partners: Tensor, generator: torch.Generator) -> Tensor:
    """Weighted sums or products of images in [0, 1], at even odds; not yet within [0, 1].

    The weights are a and b: a from Beta(s, 1) and b from Beta(1, s), or, at even odds,
    a = 1 + Beta(1, s) and b = -Beta(1, s), with s = ``STRENGTH``.
    """
    shape = (len(values), 1, 1, 1)
    # Beta(s, 1) and Beta(1, s) by their inverse distribution functions.
    uniform = torch.rand(3, *shape, generator=generator)
    much = uniform[0] ** (1 / STRENGTH)
    little, other = (1 - u ** (1 / STRENGTH) for u in uniform[1:])
    subtract = torch.rand(shape, generator=generator) < 0.5
    a = torch.where(subtract, 1 + other, much)
    b = torch.where(subtract, -little, little)
    sums = (a * (2 * values - 1) + b * (2 * partners - 1) + 1) / 2
    products = (2 * values) ** a * (2 * partners).clamp_min(_TINY) ** b / 2
    multiply = torch.rand(shape, generator=generator) < 0.5
    return torch.where(multiply, products, sums)
