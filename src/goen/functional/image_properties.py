"""Plain properties of images, which people can check by eye: how bright, how sharp they are.

They describe pixels alone: no network, no class. A monitor follows them beside the scores, so that
an alarm can name what changed in the images.
"""

import math

import torch
from torch import Tensor

_WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}
# Of red, green and blue in the luminance (ITU-R BT.601).
_LUMINANCE = (0.299, 0.587, 0.114)
_LEVELS = 64
# Rows and columns that are read of an image; neighbours within each of them are all compared.
_LINES = 32
_SMALL = ("brightness", "contrast", "sharpness", "entropy")


def property_names(channels: int) -> tuple[str, ...]:
    """The properties of images with so many channels, as ``image_properties`` orders them.

    Example:
        >>> property_names(3)
        ('brightness', 'contrast', 'sharpness', 'entropy', 'colour')
        >>> property_names(1)
        ('brightness', 'contrast', 'sharpness', 'entropy')
    """
    return (*_SMALL, "colour") if channels == len(_LUMINANCE) else _SMALL


def image_properties(images: Tensor) -> Tensor:
    """The properties of images, ``(N, P)`` float64.

    With g the grey values in [0, 1], the luminance of a colour image and else the mean of the
    channels:

    - brightness: the mean of g; contrast: its standard deviation
    - sharpness: the mean of |g - g'| over horizontal and over vertical neighbours, averaged and
      divided by the contrast; 0 of an image of one value. So a darker image is not a blurred one
    - entropy: of g in 64 equal levels, in bits
    - colour, of three channels: the mean difference of the largest and the smallest channel

    Of large images about 32 rows and 32 columns are read, each in full.

    Args:
        images: ``(N, C, H, W)``, uint8, uint16 or floats in [0, 1].

    Example:
        >>> image = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])
        >>> [round(x, 6) for x in image_properties(image)[0].tolist()]
        [0.5, 0.5, 1.0, 1.0]
    """
    white = _WHITE.get(images.dtype, 1.0)
    down, across = (-(-size // _LINES) for size in images.shape[2:])
    rows = images[:, :, ::down].float() / white
    grey = upright = _grey(rows)
    pixels = grey.flatten(1)
    if down > 1 or across > 1:
        upright = _grey(images[:, :, :, ::across].float() / white)
        pixels = torch.cat([pixels, upright.flatten(1)], dim=1)
    mean = pixels.mean(dim=1)
    contrast = (pixels - mean[:, None]).square().mean(dim=1).sqrt()
    change = (_mean_step(grey, dim=2) + _mean_step(upright, dim=1)) / 2
    sharpness = torch.where(contrast > 1e-6, change / contrast.clamp_min(1e-6), 0.0)
    found = [mean, contrast, sharpness, _entropy(pixels)]
    if images.shape[1] == len(_LUMINANCE):
        found.append((rows.amax(dim=1) - rows.amin(dim=1)).mean(dim=(1, 2)))
    return torch.stack(found, dim=1).double()


def _grey(images: Tensor) -> Tensor:
    """``(N, H, W)``"""
    if images.shape[1] != len(_LUMINANCE):
        return images.mean(dim=1)
    red, green, blue = (images[:, i] * weight for i, weight in enumerate(_LUMINANCE))
    return red + green + blue


def _mean_step(grey: Tensor, dim: int) -> Tensor:
    """The mean absolute difference of neighbours along one axis, ``(N,)``; 0 without any."""
    if grey.shape[dim] < 2:
        return grey.new_zeros(len(grey))
    return grey.diff(dim=dim).abs().mean(dim=(1, 2))


def _entropy(pixels: Tensor) -> Tensor:
    """Of the histogram of the grey values ``(N, M)`` of each image, ``(N,)`` in bits."""
    levels = (pixels * _LEVELS).long().clamp(0, _LEVELS - 1)
    offsets = _LEVELS * torch.arange(len(pixels), device=pixels.device)[:, None]
    counts = torch.bincount((levels + offsets).flatten(), minlength=_LEVELS * len(pixels))
    shares = counts.view(len(pixels), _LEVELS) / pixels.shape[1]
    nats: Tensor = torch.special.entr(shares).sum(dim=1)
    return nats / math.log(2)
