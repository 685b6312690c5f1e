"""Real images that ship inside scikit-learn: handwritten digits and two photographs.

They make the whole pipeline run anywhere, offline, in about a minute. All are 32×32 RGB.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

from goen.data.images.pixel_format import Bits, PixelFormat
from goen.data.imageset import ImageSet

PHOTOGRAPHS = ("china", "flower")
_SIDE = 32


@cache
def digits() -> ImageSet:
    """1,797 handwritten digits of the UCI set, enlarged from 8×8 with bicubic interpolation."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = (bunch.images / 16 * 255).round().astype(np.uint8)
    large = [
        np.asarray(Image.fromarray(d).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC))
        for d in small
    ]
    pixels = np.repeat(np.stack(large)[:, None], 3, axis=1)
    return ImageSet("digits", pixels, bunch.target, tuple("0123456789"))


@cache
def photographs() -> ImageSet:
    """The two photographs cut into patches that touch but never overlap; class = photograph.

    520 patches of 32×32, half a temple and half a flower, so that one photograph can calibrate
    and the other evaluate.
    """
    from sklearn.datasets import load_sample_image

    patches, labels = [], []
    for label, name in enumerate(PHOTOGRAPHS):
        photo = load_sample_image(f"{name}.jpg")
        rows, columns = photo.shape[0] // _SIDE, photo.shape[1] // _SIDE
        grid = photo[: rows * _SIDE, : columns * _SIDE].reshape(rows, _SIDE, columns, _SIDE, 3)
        patches.append(grid.transpose(0, 2, 4, 1, 3).reshape(-1, 3, _SIDE, _SIDE))
        labels += [label] * rows * columns
    return ImageSet("photographs", np.concatenate(patches), np.array(labels), PHOTOGRAPHS)


def noise(
    count: int,
    seed: int,
    stream: int = 0,
    shape: tuple[int, int, int] = (3, _SIDE, _SIDE),
    bits: Bits = 8,
) -> ImageSet:
    """``count`` images ``(C, H, W)``, pixels N(0.5, 0.5) clipped to [0, 1], the paper's noise.

    Different streams of one seed share no image. The numbers come from NumPy's frozen legacy
    generator: the same on every machine and in every version.
    """
    # RandomState's stream is frozen for good; default_rng's is not.
    rng = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, stream])))
    pixels = np.empty((count, *shape), PixelFormat(shape[0], bits).dtype)
    for start in range(0, count, 512):
        part = pixels[start : start + 512]
        values = rng.normal(0.5, 0.5, part.shape)
        part[:] = (values.clip(0, 1) * (2**bits - 1)).round()
    return ImageSet("noise", pixels, np.zeros(count, np.int64), ("noise",))


@dataclass(frozen=True)
class Embedded:
    """A set that needs no file and no network."""

    title: str
    licence: str
    count: int
    load: Callable[[], ImageSet]


EMBEDDED: Mapping[str, Embedded] = {
    "digits": Embedded("handwritten digits of scikit-learn", "CC BY 4.0", 1797, digits),
    "photographs": Embedded(
        "patches of scikit-learn's two photographs", "CC BY 2.0", 520, photographs
    ),
    "noise": Embedded(
        "Gaussian noise N(0.5, 0.5), clipped", "none needed", 1000, lambda: noise(1000, seed=0)
    ),
}
