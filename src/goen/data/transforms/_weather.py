"""The two textures that weather needs: clouds for the fog, ice for the frost."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float32]

_NUM_PANES = 5
_SIDE = 256

_NUCLEI = 50  # crystals per pane, so that a 32-pixel crop shows one or two of them
_SHADE = np.array([44, 56, 78], dtype=np.float32)  # bare glass, RGB
_LIGHT = np.array([244, 249, 255], dtype=np.float32)  # thick ice


def plasma(noise: Floats, decay: float) -> Floats:
    """Clouds in 0..1 by the diamond-square algorithm on a torus, (N, S, S).

    Every grid point is the mean of its four nearest already known neighbours plus a random jolt.
    The swing starts at 100, falls by ``decay`` each time the mesh is halved, and enters squared,
    as in the published script.

    Args:
        noise: one number in [0, 1) for every point, (N, S, S), S a power of two.
        decay: the larger, the smoother.
    """
    jolt = 2 * noise - 1
    height = np.zeros_like(noise)
    step, swing = noise.shape[-1], 100.0
    while step >= 2:
        known, between = slice(None, None, step), slice(step // 2, None, step)

        corner = height[:, known, known]
        right, below = np.roll(corner, -1, axis=2), np.roll(corner, -1, axis=1)
        middle = (corner + right + below + np.roll(below, -1, axis=2)) / 4
        middle += swing**2 * jolt[:, between, between]
        height[:, between, between] = middle

        on_row = (corner + right + middle + np.roll(middle, 1, axis=1)) / 4
        height[:, known, between] = on_row + swing**2 * jolt[:, known, between]
        on_column = (corner + below + middle + np.roll(middle, 1, axis=2)) / 4
        height[:, between, known] = on_column + swing**2 * jolt[:, between, known]

        step, swing = step // 2, swing / decay
    height -= height.min(axis=(1, 2), keepdims=True)
    return np.asarray(height / height.max(axis=(1, 2), keepdims=True))


def frost_crops(draw: Floats, height: int, width: int) -> Floats:
    """Crops of frosted panes in grey levels 0..255, (N, 3, height, width).

    Args:
        draw: which pane, which row and which column to start from, as shares in [0, 1), (N, 3).
    """
    pane = (draw[:, 0] * _NUM_PANES).astype(np.int64)[:, None, None]
    row, col = (draw[:, 1:] * _SIDE).astype(np.int64).T[..., None, None]
    ice = _panes()[
        pane, (row + np.arange(height)[:, None]) % _SIDE, (col + np.arange(width)) % _SIDE
    ]
    tint = _SHADE[:, None, None] + ice[:, None] * (_LIGHT - _SHADE)[:, None, None]
    return np.asarray(tint)


@cache
def _panes() -> Floats:
    """The ice on each pane, (5, 256, 256), the same in every process.

    A pane joins up with itself at opposite edges, so a crop of any size may start anywhere.
    """
    return np.stack([_pane(np.random.default_rng(number)) for number in range(_NUM_PANES)])


def _pane(rng: np.random.Generator) -> Floats:
    """Thickness of the ice in 0..1, (256, 256): six-armed ferns and a ridged haze."""
    bend = np.stack([_smooth_noise(rng, width=8) for _ in range(2)])
    points = np.indices((_SIDE, _SIDE)) + bend

    # Every point belongs to the nearest nucleus, the short way round the torus.
    nuclei = rng.uniform(0, _SIDE, size=(_NUCLEI, 2))
    turn = rng.uniform(0, np.pi, size=_NUCLEI)
    nearest = np.full((_SIDE, _SIDE), np.inf)
    angle = np.zeros_like(nearest)
    for nucleus in range(_NUCLEI):
        dy, dx = (points - nuclei[nucleus, :, None, None] + _SIDE / 2) % _SIDE - _SIDE / 2
        distance = np.hypot(dy, dx)
        mine = distance < nearest
        nearest[mine] = distance[mine]
        angle[mine] = np.arctan2(dy[mine], dx[mine]) + turn[nucleus]

    # Six arms per crystal; along each, needles branch off at sixty degrees on both sides.
    folded = (angle + np.pi / 6) % (np.pi / 3) - np.pi / 6
    along, aside = nearest * np.cos(folded), np.abs(nearest * np.sin(folded))
    phase = (along - aside / np.sqrt(3) + _smooth_noise(rng, width=2)) / 7
    needles = np.abs(2 * (phase % 1) - 1) ** 2
    arms = np.exp(-aside / 1.5)
    haze = 1 - np.abs(_smooth_noise(rng, width=12) + 0.5 * _smooth_noise(rng, width=3))
    thick = 1 / (1 + np.exp(-3 * _smooth_noise(rng, width=24)))
    ice = (0.3 + 0.7 * thick) * (0.8 * needles + 0.9 * arms + 0.3) + 0.1 * haze
    return np.asarray(np.clip(ice, 0, 1), dtype=np.float32)


def _smooth_noise(rng: np.random.Generator, *, width: float) -> NDArray[np.float64]:
    """Gaussian noise of unit spread, smooth over ``width`` pixels and periodic."""
    noise = rng.standard_normal((_SIDE, _SIDE))
    smooth: NDArray[np.float64] = ndimage.gaussian_filter(noise, width, mode="wrap")
    return np.asarray(smooth / smooth.std())
