"""The fifteen corruptions of CIFAR-10-C at five severities, on whole batches.

Paper: Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019. The numbers are those of its ``make_cifar_c.py``; the code is our own.

``corrupt`` makes corrupted images; ``read_cifar10c`` reads the official ones where they are stored.
A corruption here is a function of the uint8 batch (N, 3, H, W), the severity, and one random
stream per image. Its table of five published numbers stands above it. They count pixels of 32-pixel
images and are used as they are at any size; only ``elastic_transform`` is published, and applied,
as a share of the side.

Departs from the published script: everywhere, in the random stream. Nowhere else, unless a
function says so. Like the script we cut values down to whole grey levels rather than round them.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from goen.checks import check_choice
from goen.data.images.formats import open_image
from goen.data.imageset import Pixels
from goen.data.transforms._weather import frost_crops, plasma
from goen.errors import DataCorrupt, DataMissing, UsageError

Floats = NDArray[np.float32]
Streams = Sequence[np.random.Generator]
Scalar = TypeVar("Scalar", bound=np.generic)

SEVERITIES = (1, 2, 3, 4, 5)

_PIXELS_AT_ONCE = 2**18  # 256 CIFAR images: every temporary stays below a few megabytes


def corrupt(images: Pixels, name: str, severity: int, *, seed: int = 0, start: int = 0) -> Pixels:
    """The images, corrupted: a new array of the same shape (N, 3, H, W).

    The same bytes come back for the same arguments. Image ``i`` draws from its own stream, keyed
    by ``(seed, name, severity, start + i)``, so chunks of any size give what one call gives.

    Args:
        images: RGB, uint8, (N, 3, H, W), sides of at least 8 pixels. Never modified.
        name: a key of ``CORRUPTIONS``.
        severity: 1 (mild) to 5.
        start: the position of the first image in its set.

    Example:
        >>> grey = np.full((2, 3, 32, 32), 100, dtype=np.uint8)
        >>> corrupt(grey, "brightness", 3)[0, :, 0, 0]
        array([138, 138, 138], dtype=uint8)
        >>> whole = corrupt(grey, "fog", 5, seed=7)
        >>> np.array_equal(whole[1:], corrupt(grey[1:], "fog", 5, seed=7, start=1))
        True
    """
    _check(images, name, severity)
    apply = CORRUPTIONS[name].apply
    # One Philox key per call, one counter range per image: nothing to hash in the loop.
    entropy = (seed, zlib.crc32(name.encode()), severity)
    key = np.random.SeedSequence(entropy).generate_state(2, np.uint64)
    out = np.empty(images.shape, dtype=np.uint8)
    step = max(1, _PIXELS_AT_ONCE // (images.shape[2] * images.shape[3]))
    for first in range(0, len(images), step):
        chunk = np.ascontiguousarray(images[first : first + step])
        streams = [
            np.random.Generator(np.random.Philox(key=key, counter=(0, 0, position, 0)))
            for position in range(start + first, start + first + len(chunk))
        ]
        out[first : first + step] = apply(chunk, severity, streams)
    return out


def corrupt_any(images: Pixels, name: str, severity: int) -> Pixels:
    """Corrupt colour or grey images of 8 or 16 bits, as ``corrupt`` does colour of 8 bits.

    Grey images are corrupted as colour with three equal channels, whose mean is then taken; of 16
    bits the upper eight are.
    """
    deep = images.dtype == np.uint16
    short = (images // 257).astype(np.uint8) if deep else images
    grey = images.shape[1] == 1
    worse: Pixels = corrupt(np.repeat(short, 3, axis=1) if grey else short, name, severity)
    if grey:
        worse = worse.mean(axis=1, keepdims=True).round().astype(np.uint8)
    return worse.astype(np.uint16) * 257 if deep else worse


def read_cifar10c(folder: Path, name: str, severity: int) -> Pixels:
    """The official images, memory-mapped from ``<folder>/<name>.npy``: (10000, 3, 32, 32)."""
    _check_choice(name, severity)
    path, expected = folder / f"{name}.npy", (50_000, 32, 32, 3)
    wanted = f"{path} should hold uint8 {expected}"
    advice = "Download CIFAR-10-C again from https://zenodo.org/records/2535967."
    if not path.is_file():
        raise DataMissing(f"Expected the CIFAR-10-C file {path}, found none. {advice}")
    try:
        stored = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header fails in as many ways as Python has exceptions
        raise DataCorrupt(f"{wanted}, but cannot be read: {error}. {advice}") from error
    if stored.dtype != np.uint8 or stored.shape != expected:
        raise DataCorrupt(f"{wanted}, found {stored.dtype} {stored.shape}. {advice}")
    return np.asarray(stored).transpose(0, 3, 1, 2)[(severity - 1) * 10_000 :][:10_000]


def _check(images: Pixels, name: str, severity: int) -> None:
    _check_choice(name, severity)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        raise UsageError(
            "Images to corrupt must be a numpy array of uint8 in 0..255, "
            f"got {getattr(images, 'dtype', type(images))}. Corrupt before converting."
        )
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < 8:
        raise UsageError(
            "Images to corrupt must be (N, 3, H, W) with H and W at least 8, "
            f"got {images.shape}. Put channels second; repeat a grey channel three times."
        )


def _check_choice(name: str, severity: int) -> None:
    check_choice("corruption", name, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise UsageError(f"Severity must be one of 1, 2, 3, 4, 5, got {severity!r}.")


# What several corruptions share


def _unit(images: Pixels) -> Floats:
    return images.astype(np.float32) / np.float32(255)


def _pixels(values: NDArray[np.floating]) -> Pixels:
    """Values in 0..1 as grey levels, cut down to whole ones; 1e-3 forgives float round-off."""
    return np.asarray(np.clip(values, 0, 1) * 255 + 1e-3).astype(np.uint8)


def _uniform(streams: Streams, *shape: int) -> Floats:
    return np.stack([stream.random(shape, dtype=np.float32) for stream in streams])


def _normal(streams: Streams, *shape: int) -> Floats:
    return np.stack([stream.standard_normal(shape, dtype=np.float32) for stream in streams])


def _gather(
    images: NDArray[Scalar], rows: NDArray[np.int64], cols: NDArray[np.int64]
) -> NDArray[Scalar]:
    """``images[n, :, rows[n], cols[n]]`` for (N, H, W) rows and cols that broadcast."""
    n, c, h, w = images.shape
    index = np.broadcast_to(rows * w + cols, (n, h, w)).reshape(n, 1, h * w)
    return np.take_along_axis(images.reshape(n, c, h * w), index, axis=2).reshape(n, c, h, w)


# Noise

_GAUSSIAN_STD = (0.04, 0.06, 0.08, 0.09, 0.10)
_SHOT_PHOTONS = (500, 250, 100, 75, 50)  # at full white
_IMPULSE_SHARE = (0.01, 0.02, 0.03, 0.05, 0.07)


def _gaussian_noise(images: Pixels, severity: int, streams: Streams) -> Pixels:
    noise = _normal(streams, *images.shape[1:])
    return _pixels(_unit(images) + _GAUSSIAN_STD[severity - 1] * noise)


def _shot_noise(images: Pixels, severity: int, streams: Streams) -> Pixels:
    photons = _SHOT_PHOTONS[severity - 1]
    light = images * (photons / 255)
    counts = np.stack([s.poisson(mean) for s, mean in zip(streams, light, strict=True)])
    return _pixels(counts / photons)


def _impulse_noise(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """Each value, every channel for itself, turns black or white with equal chance."""
    share = _IMPULSE_SHARE[severity - 1]
    draw = _uniform(streams, *images.shape[1:])
    black, hit = draw < share / 2, draw < share
    return np.where(black, 0, np.where(hit, 255, images)).astype(np.uint8)


# Blur

_DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))  # disk radius, edge blur
_GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))  # blur, rounds; reach is 1 pixel
_MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))  # radius, sigma
_ZOOM_END = (1.06, 1.11, 1.16, 1.21, 1.26)  # np.arange(1, end, 0.01) keeps the first two ends


def _defocus_blur(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """The mean over a disk, its edge softened by a Gaussian of 3 x 3 pixels."""
    radius, edge_blur = _DEFOCUS[severity - 1]
    reach = np.arange(-int(radius) - 1, int(radius) + 2)
    disk = (reach[:, None] ** 2 + reach**2 <= radius**2).astype(np.float32)
    edge = np.exp(-0.5 * (np.array([-1, 0, 1]) / edge_blur) ** 2)
    kernel = ndimage.convolve(disk, np.outer(edge, edge), mode="constant")
    kernel /= kernel.sum()
    return _pixels(ndimage.correlate(_unit(images), kernel[None, None], mode="mirror"))


def _glass_blur(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """Blur, then every pixel takes its own colour or that of an upper or left neighbour, then blur.

    The published loop means to swap two pixels but writes through numpy views, so the second
    assignment reads what the first has just written: one pixel is copied, the other stays. It runs
    from the lower right up, where no source has been touched yet, so one gather does a round.
    Neighbours at +1 are never taken, and the first two rows and columns stay, as published.
    """
    sigma, rounds = _GLASS[severity - 1]
    h, w = images.shape[2:]
    shards = _pixels(_gaussian_blur(images, sigma))
    for _ in range(rounds):
        shift = (_uniform(streams, 2, h, w) < 0.5).astype(np.int64)
        shift[:, :, :2] = 0
        shift[:, :, :, :2] = 0
        shards = _gather(shards, np.arange(h)[:, None] - shift[:, 0], np.arange(w) - shift[:, 1])
    return _pixels(_gaussian_blur(shards, sigma))


def _gaussian_blur(images: Pixels, sigma: float) -> Floats:
    sigmas = (0, 0, sigma, sigma)
    return np.asarray(ndimage.gaussian_filter(_unit(images), sigmas, mode="nearest", truncate=4))


def _motion_blur(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """A smear to one side, in a direction up to 45 degrees from the horizontal.

    Departs from the published script: our own ``_smear`` after the rule of ImageMagick, which the
    script calls. Rounded, not cut, as there.
    """
    degrees = 90 * _uniform(streams)[:, None, None] - 45
    return _pixels(_smear(_unit(images), *_MOTION[severity - 1], degrees) + 0.5 / 255)


def _smear(images: Floats, radius: int, sigma: float, degrees: Floats) -> Floats:
    """Half a Gaussian over ``2 radius + 1`` pixels in a line, the border repeated outward."""
    h, w = images.shape[2:]
    right, down = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / sigma) ** 2).astype(np.float32)
    out = np.zeros_like(images)
    for tap, weight in enumerate(weights / weights.sum()):
        rows = np.arange(h)[:, None] + np.ceil(tap * down - 0.5).astype(np.int64)
        cols = np.arange(w) + np.ceil(tap * right - 0.5).astype(np.int64)
        out += weight * _gather(images, np.clip(rows, 0, h - 1), np.clip(cols, 0, w - 1))
    return out


def _zoom_blur(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """The mean of the image, counted once more, and its enlargements by 0, 1, 2, ... percent."""
    clean = _unit(images)
    factors = np.arange(1, _ZOOM_END[severity - 1], 0.01)
    total = sum((_zoom(clean, factor) for factor in factors), start=clean)
    return _pixels(total / (len(factors) + 1))


def _zoom(images: Floats, factor: float) -> Floats:
    """The middle of the images, enlarged linearly to the full size."""
    down, across = (_zoom_matrix(side, factor) for side in images.shape[2:])
    return np.asarray(down @ images @ across.T)


def _zoom_matrix(side: int, factor: float) -> Floats:
    """(side, side): each output pixel as a mixture of two input pixels.

    As the script crops: the middle ``ceil(side / factor)`` pixels are spread, end on end, over
    ``round(crop * factor)``, and the surplus is trimmed.
    """
    crop = int(np.ceil(side / factor))
    grown = round(crop * factor)
    kept = (grown - side) // 2 + np.arange(side)
    source = (side - crop) // 2 + kept * (crop - 1) / (grown - 1)
    matrix = np.maximum(0, 1 - np.abs(source[:, None] - np.arange(side)))
    return np.asarray(matrix, dtype=np.float32)


# Weather

# flakes: mean, spread, enlargement, threshold; their fall: radius, sigma; share of colour kept
_SNOW = (
    (0.10, 0.2, 1.00, 0.60, 8, 3, 0.95),
    (0.10, 0.2, 1.00, 0.50, 10, 4, 0.90),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.90),
    (0.25, 0.3, 2.25, 0.60, 12, 6, 0.85),
    (0.30, 0.3, 1.25, 0.65, 14, 12, 0.80),
)
_FROST = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))  # of the image, of the ice
_FOG = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))  # thickness, smoothness
_BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)[:, None, None]


def _snow(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """Blurred falling flakes, and the same flakes upside down, on a paled image.

    Departs from the published script: the flakes fall by our own ``_smear``; those of images that
    are not square are cropped on each axis for itself.
    """
    mean, spread, factor, threshold, radius, sigma, kept = _SNOW[severity - 1]
    flakes = _zoom(mean + spread * _normal(streams, 1, *images.shape[2:]), factor)
    flakes = _unit(_pixels(np.where(flakes < threshold, 0, flakes)))
    degrees = 90 * _uniform(streams)[:, None, None] - 135
    flakes = _smear(flakes, radius, sigma, degrees)

    clean = _unit(images)
    pale = np.maximum(clean, 1.5 * (clean * _GREY).sum(axis=1, keepdims=True) + 0.5)
    return _pixels(kept * clean + (1 - kept) * pale + flakes + flakes[:, :, ::-1, ::-1])


def _frost(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """The image seen through a frosted pane.

    Departs from the published script: it blends in crops of five photographs of frost, which we
    cannot ship. Ours are crops of five drawn panes (``_weather.frost_crops``), with the published
    weights; how bright and how dense the ice is was judged by eye.
    """
    kept, ice = _FROST[severity - 1]
    frost = frost_crops(_uniform(streams, 3), *images.shape[2:])
    return _pixels((kept * images + ice * frost) / 255)


def _fog(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """Clouds added, then darkened so that the brightest possible value stays where it was.

    Departs from the published script: the map of clouds is the smallest power of two that covers
    the image, 32 for CIFAR as published.
    """
    thickness, smoothness = _FOG[severity - 1]
    h, w = images.shape[2:]
    side = 1 << (max(h, w) - 1).bit_length()
    clouds = plasma(_uniform(streams, side, side), smoothness)[:, None, :h, :w]
    clean = _unit(images)
    top = clean.max(axis=(1, 2, 3), keepdims=True)
    return _pixels((clean + thickness * clouds) * top / (top + thickness))


def _brightness(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """The value of HSV raised, hue and saturation kept: RGB scaled, and black turned grey."""
    clean = _unit(images)
    value = clean.max(axis=1, keepdims=True)
    raised = np.minimum(value + _BRIGHTNESS[severity - 1], 1)
    black = value == 0
    return _pixels(np.where(black, raised, clean * raised / np.where(black, 1, value)))


# Digital

_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
# percent of the shorter side: length of the local displacement, its smoothness, affine jitter
_ELASTIC = ((0, 0, 8), (5, 20, 7), (8, 6, 6), (10, 4, 5), (10, 3, 3))
_PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)  # of the side
_JPEG_QUALITY = (80, 65, 58, 50, 40)


def _contrast(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """Every channel drawn toward its own mean."""
    clean = images / 255
    mean = clean.mean(axis=(2, 3), keepdims=True)
    return _pixels((clean - mean) * _CONTRAST[severity - 1] + mean)


def _elastic_transform(images: Pixels, severity: int, streams: Streams) -> Pixels:
    """A random affine map of three points, then a smooth random displacement of every pixel.

    Departs from the published script: interpolation is exact where OpenCV's has steps of 1/32
    pixel; the three points of images that are not square lie about their true centre.
    """
    h, w = images.shape[2:]
    length, smoothness, jitter = (p / 100 * min(h, w) for p in _ELASTIC[severity - 1])
    xy = np.stack(np.meshgrid(np.arange(w), np.arange(h)), axis=-1)

    corners = np.array([[1, 1], [1, -1], [-1, -1]]) * (min(h, w) // 3)
    before = np.array([w // 2, h // 2]) + corners
    after = before + jitter * (2 * _uniform(streams, 3, 2).astype(np.float64) - 1)
    # The two edges from the middle corner give the map from after to before: (x, y) @ back.
    back = np.linalg.solve(after[:, [0, 2]] - after[:, [1]], before[[0, 2]] - before[1])
    source = (xy - after[:, None, None, 1]) @ back[:, None] + before[1]
    warped = _bilinear(_unit(images), source[..., 1], source[..., 0], repeat_border=False)

    field = 2 * _uniform(streams, 2, h, w) - 1
    sigmas = (0, 0, smoothness, smoothness)
    field = length * ndimage.gaussian_filter(field, sigmas, mode="reflect", truncate=3)
    rows, cols = xy[..., 1] + field[:, 1], xy[..., 0] + field[:, 0]
    return _pixels(_bilinear(warped, rows, cols, repeat_border=True))


def _bilinear(
    images: Floats, rows: NDArray[np.floating], cols: NDArray[np.floating], *, repeat_border: bool
) -> Floats:
    """The images (N, C, H, W) between their pixels, at (N, H, W) rows and columns.

    Beyond the border they are mirrored: cba|abcd|dcb if it is repeated, dcb|abcd|cba if not.
    """

    def fold(index: NDArray[np.int64], side: int) -> NDArray[np.int64]:
        period = 2 * side if repeat_border else 2 * side - 2
        index = index % period
        return np.minimum(index, period - repeat_border - index)

    h, w = images.shape[2:]
    top, left = np.floor(rows).astype(np.int64), np.floor(cols).astype(np.int64)
    down = (rows - top).astype(np.float32)[:, None]
    right = (cols - left).astype(np.float32)[:, None]
    first, second = (
        (1 - right) * _gather(images, r, fold(left, w))
        + right * _gather(images, r, fold(left + 1, w))
        for r in (fold(top, h), fold(top + 1, h))
    )
    return np.asarray((1 - down) * first + down * second)


def _pixelate(images: Pixels, severity: int, streams: Streams) -> Pixels:
    h, w = images.shape[2:]
    small = int(w * _PIXELATE[severity - 1]), int(h * _PIXELATE[severity - 1])
    box = Image.Resampling.BOX
    return _each(images, lambda image: image.resize(small, box).resize((w, h), box))


def _jpeg_compression(images: Pixels, severity: int, streams: Streams) -> Pixels:
    def through_jpeg(image: Image.Image) -> Image.Image:
        file = BytesIO()
        image.save(file, "JPEG", quality=_JPEG_QUALITY[severity - 1])
        return open_image(file)

    return _each(images, through_jpeg)


def _each(images: Pixels, change: Callable[[Image.Image], Image.Image]) -> Pixels:
    rows = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    changed = np.stack([np.asarray(change(Image.fromarray(image))) for image in rows])
    return changed.transpose(0, 3, 1, 2)


@dataclass(frozen=True)
class Corruption:
    """One of the fifteen: the group it is reported under, and what it does to a batch."""

    group: str
    apply: Callable[[Pixels, int, Streams], Pixels]


CORRUPTIONS: Mapping[str, Corruption] = {
    "gaussian_noise": Corruption("noise", _gaussian_noise),
    "shot_noise": Corruption("noise", _shot_noise),
    "impulse_noise": Corruption("noise", _impulse_noise),
    "defocus_blur": Corruption("blur", _defocus_blur),
    "glass_blur": Corruption("blur", _glass_blur),
    "motion_blur": Corruption("blur", _motion_blur),
    "zoom_blur": Corruption("blur", _zoom_blur),
    "snow": Corruption("weather", _snow),
    "frost": Corruption("weather", _frost),
    "fog": Corruption("weather", _fog),
    "brightness": Corruption("weather", _brightness),
    "contrast": Corruption("digital", _contrast),
    "elastic_transform": Corruption("digital", _elastic_transform),
    "pixelate": Corruption("digital", _pixelate),
    "jpeg_compression": Corruption("digital", _jpeg_compression),
}
