"""Images of fractals from random numbers."""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats: TypeAlias = NDArray[np.float64]

# Points of a fractal that are drawn, and those before it that have not settled on it.
_POINTS, _UNSETTLED = 4000, 20
_MAPS = 4
# Fractals drawn together: more need more memory and are no faster.
_AT_ONCE = 100


def fractals(count: int, side: int, seed: int) -> Tensor:
    """Coloured fractals ``(count, 3, side, side)`` uint8, the same for the same numbers.

    Each is the attractor of two to four random affine contractions: a point jumps by one of them
    at a time, and every place where it lands is lit, in a colour that depends on the jumps before.

    Source: Barnsley & Demko, Iterated Function Systems (1985); Hendrycks et al., PixMix (2022), mix
    images with such patterns. Departs from it: theirs were collected from the web.

    Args:
        count: how many.
        side: in pixels.
        seed: of the random numbers.

    Example:
        >>> fractals(2, 32, seed=0).shape
        torch.Size([2, 3, 32, 32])
    """
    rng = np.random.default_rng(seed)
    maps, weights = _contractions(count, rng)
    choices = rng.random((_POINTS + _UNSETTLED, count))
    colours, ground = rng.random((count, _MAPS, 3)), rng.random((count, 3, 1))
    parts = []
    for start in range(0, count, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        places, painted = _points(maps[part], weights[part], colours[part], choices[:, part])
        parts.append(_drawn(places, painted, ground[part], side))
    return torch.cat(parts)


def _points(
    maps: Floats, weights: Floats, colours: Floats, choices: Floats
) -> tuple[Floats, Floats]:
    """Where the points of each fractal land ``(points, count, 2)``, and their colours."""
    every = np.arange(len(maps))
    taken = (choices[:, :, None] > weights.cumsum(1)).sum(2)
    point, colour = np.zeros((len(maps), 2)), np.full((len(maps), 3), 0.5)
    places, painted = [], []
    for step in taken.clip(max=_MAPS - 1):  # the weights' sum may round below 1
        jump = maps[every, step]
        point = np.einsum("nij,nj->ni", jump[:, :, :2], point) + jump[:, :, 2]
        colour = (colour + colours[every, step]) / 2
        places.append(point)
        painted.append(colour)
    return np.stack(places[_UNSETTLED:]), np.stack(painted[_UNSETTLED:])


def _contractions(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Affine maps ``(count, 4, 2, 3)`` and how often each is taken ``(count, 4)``."""
    turns = rng.uniform(0, 2 * np.pi, (2, count, _MAPS))
    first, second = (
        np.stack([np.cos(t), -np.sin(t), np.sin(t), np.cos(t)], -1).reshape(count, _MAPS, 2, 2)
        for t in turns
    )
    shrink = rng.uniform(0.3, 0.9, (count, _MAPS, 2))
    linear = first @ (shrink[..., None] * second)
    maps = np.concatenate([linear, rng.uniform(-1, 1, (count, _MAPS, 2, 1))], axis=3)
    used = np.arange(_MAPS) < rng.integers(2, _MAPS + 1, (count, 1))
    # A map that shrinks less covers more of the fractal.
    areas = np.abs(np.linalg.det(linear)) * used
    return maps, areas / areas.sum(1, keepdims=True)


def _drawn(places: Floats, painted: Floats, ground: Floats, side: int) -> Tensor:
    """The mean colour of the points in every pixel, denser where there are many of them."""
    count = places.shape[1]
    low, high = np.percentile(places, (1, 99), axis=0)
    scaled = (places - low) / np.maximum(high - low, 1e-9) * side
    inside = ((scaled >= 0) & (scaled < side)).all(2)
    pixel = scaled.astype(np.int64)
    index = (np.arange(count) * side + pixel[:, :, 1]) * side + pixel[:, :, 0]
    index, size = index[inside], count * side * side
    hits = np.bincount(index, minlength=size).astype(float)
    sums = [np.bincount(index, painted[..., c][inside], size) for c in range(3)]
    colour = np.stack(sums).reshape(3, count, -1).transpose(1, 0, 2)
    hits = hits.reshape(count, 1, -1)
    light = np.log1p(hits) / np.log1p(hits.max(axis=2, keepdims=True))
    image = ground * (1 - light) + colour / np.maximum(hits, 1) * light
    bytes_ = (image * 255).round().astype(np.uint8)
    return torch.from_numpy(bytes_.reshape(count, 3, side, side))
