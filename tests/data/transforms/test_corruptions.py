"""Every corruption meets the same laws, and each its own independent reference."""

import colorsys
import itertools
import math
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_sample_image

from goen.data.transforms import corruptions
from goen.data.transforms._weather import frost_crops
from goen.data.transforms.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    _smear,
    _zoom,
    corrupt,
    corrupt_any,
    read_cifar10c,
)
from goen.errors import DataCorrupt, DataMissing, UsageError
from tests.data.transforms.test_weather import slow_plasma

Pixels = NDArray[np.uint8]

GRID = list(itertools.product(CORRUPTIONS, SEVERITIES))

NOT_RANDOM = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
}

# Steps (from, to) at which the published numbers need not move the image further away, and why.
NOT_FARTHER = {
    "glass_blur": {(1, 2), (2, 3), (4, 5)},  # more blur undoes part of the same shuffling
    "motion_blur": {(3, 4)},  # only the radius grows, and it reached three sigmas already
    "frost": {(3, 4), (4, 5)},  # as much ice on a darker image: nearer to where it was
    "elastic_transform": {(1, 2), (2, 3), (3, 4), (4, 5)},  # the affine jitter shrinks
}


# The mean change of a pixel, by severity, as it was when the numbers were compared with the
# published ones.
CHANGE = {
    "gaussian_noise": (7.556, 11.162, 14.561, 16.284, 17.951),
    "shot_noise": (5.070, 7.067, 10.913, 12.475, 15.039),
    "impulse_noise": (1.197, 2.615, 3.824, 6.450, 8.740),
    "defocus_blur": (1.028, 2.156, 3.129, 4.043, 5.577),
    "glass_blur": (6.223, 6.285, 6.368, 9.712, 9.546),
    "motion_blur": (3.628, 5.713, 7.254, 7.406, 8.263),
    "zoom_blur": (5.017, 5.893, 6.912, 7.906, 8.848),
    "snow": (10.051, 21.923, 23.148, 33.656, 45.729),
    "frost": (25.550, 39.735, 44.589, 41.248, 41.882),
    "fog": (13.556, 24.336, 32.924, 37.221, 43.675),
    "brightness": (8.130, 15.996, 23.145, 29.787, 41.738),
    "contrast": (8.196, 16.376, 19.657, 22.926, 27.845),
    "elastic_transform": (11.820, 10.610, 9.645, 9.343, 8.158),
    "pixelate": (1.011, 1.939, 2.375, 3.533, 4.961),
    "jpeg_compression": (4.299, 5.184, 5.549, 5.848, 6.304),
}


def photographs(side: int = 32) -> Pixels:
    """30 patches of scikit-learn's two photographs, shrunk so that a patch shows something."""
    patches = []
    for name in ("china.jpg", "flower.jpg"):
        small = np.asarray(Image.fromarray(load_sample_image(name)).resize((160, 106)))
        for top, left in itertools.product(range(0, 75, 32), range(0, 160, 32)):
            patches.append(small[top : top + side, left : left + side])
    return np.ascontiguousarray(np.stack(patches).transpose(0, 3, 1, 2))


PHOTOGRAPHS = photographs()
OBLONG = np.ascontiguousarray(PHOTOGRAPHS[::5, :, :20, :27])


def constant(value: int, *, num: int = 1, side: int = 32) -> Pixels:
    return np.full((num, 3, side, side), value, dtype=np.uint8)


def one_white_pixel(row: int = 16, col: int = 16, *, num: int = 1) -> Pixels:
    image = constant(0, num=num)
    image[:, :, row, col] = 255
    return image


def whole_levels(values: NDArray[np.floating]) -> Pixels:
    """The script's rule: clip to 0..1 and cut down, but not because of float round-off."""
    return np.asarray(np.floor(np.clip(values, 0, 1) * 255 + 1e-3)).astype(np.uint8)


def assert_nearly_all_equal(found: Pixels, expected: Pixels) -> None:
    """Equal but for values that fall on a whole level in one precision and not in the other."""
    apart = np.abs(found.astype(int) - expected)
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.005


# Laws for all


def test_the_fifteen_stand_in_customary_order() -> None:
    groups = {name: corruption.group for name, corruption in CORRUPTIONS.items()}
    assert list(groups.items()) == [
        ("gaussian_noise", "noise"),
        ("shot_noise", "noise"),
        ("impulse_noise", "noise"),
        ("defocus_blur", "blur"),
        ("glass_blur", "blur"),
        ("motion_blur", "blur"),
        ("zoom_blur", "blur"),
        ("snow", "weather"),
        ("frost", "weather"),
        ("fog", "weather"),
        ("brightness", "weather"),
        ("contrast", "digital"),
        ("elastic_transform", "digital"),
        ("pixelate", "digital"),
        ("jpeg_compression", "digital"),
    ]


@pytest.mark.parametrize(("name", "severity"), GRID)
def test_chunks_of_any_size_give_what_one_call_gives(name: str, severity: int) -> None:
    images = OBLONG.copy()
    images.flags.writeable = False
    whole = corrupt(images, name, severity, seed=3, start=100)
    assert whole.shape == images.shape
    assert whole.dtype == np.uint8
    assert (whole != images).any(axis=(1, 2, 3)).all()
    assert np.array_equal(images, OBLONG)
    for cuts in ([0, 6], [0, 1, 4, 6]):  # the first is a plain repetition
        chunks = [
            corrupt(images[a:b], name, severity, seed=3, start=100 + a)
            for a, b in itertools.pairwise(cuts)
        ]
        assert np.array_equal(np.concatenate(chunks), whole)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_chunks_inside_one_call_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = corrupt(OBLONG, name, 5)
    monkeypatch.setattr("goen.data.transforms.corruptions._PIXELS_AT_ONCE", 4 * 20 * 27)
    assert np.array_equal(corrupt(OBLONG, name, 5), whole)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_seed_and_position_decide_what_is_random(name: str) -> None:
    twins = np.repeat(OBLONG[:1], 2, axis=0)
    same = corrupt(twins, name, 3, seed=0)
    other = corrupt(twins, name, 3, seed=1)
    assert np.array_equal(same, other) == (name in NOT_RANDOM)
    assert np.array_equal(same[0], same[1]) == (name in NOT_RANDOM)


def test_the_stream_is_the_same_in_every_process() -> None:
    hit = np.flatnonzero(corrupt(constant(100), "impulse_noise", 1, seed=0) != 100)
    assert hit[:5].tolist() == [80, 132, 203, 506, 617]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_damage_grows_with_severity(name: str) -> None:
    damage = [
        np.abs(corrupt(PHOTOGRAPHS, name, severity).astype(int) - PHOTOGRAPHS).mean()
        for severity in SEVERITIES
    ]
    shrinks = {
        (severity, severity + 1)
        for severity, (mild, strong) in enumerate(itertools.pairwise(damage), start=1)
        if strong <= mild
    }
    assert shrinks <= NOT_FARTHER.get(name, set())
    assert damage[0] > 0.5


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 13), (70, 48)])
def test_other_sizes_work(name: str, height: int, width: int) -> None:
    images = np.ascontiguousarray(np.tile(PHOTOGRAPHS[:2], (1, 1, 3, 2))[:, :, :height, :width])
    for severity in SEVERITIES:
        assert corrupt(images, name, severity).shape == images.shape


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_no_images_give_no_images(name: str) -> None:
    assert corrupt(PHOTOGRAPHS[:0], name, 1).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("value", [0, 1, 77, 128, 254, 255])
@pytest.mark.parametrize(
    "name",
    "defocus_blur glass_blur motion_blur zoom_blur contrast elastic_transform pixelate".split(),
)
def test_a_constant_image_stays_constant(name: str, value: int) -> None:
    for severity in SEVERITIES:
        assert (corrupt(constant(value, num=3), name, severity) == value).all()


# Noise


@pytest.mark.parametrize(
    ("severity", "std"), [(1, 0.04), (2, 0.06), (3, 0.08), (4, 0.09), (5, 0.10)]
)
def test_gaussian_noise_has_the_published_spread(severity: int, std: float) -> None:
    noisy = corrupt(constant(128, num=20), "gaussian_noise", severity) / 255
    assert noisy.std() == pytest.approx(std, rel=0.02)
    # Cutting down instead of rounding costs half a level on average.
    assert 255 * noisy.mean() == pytest.approx(127.5, abs=0.25)


@pytest.mark.parametrize(("severity", "photons"), [(1, 500), (2, 250), (3, 100), (4, 75), (5, 50)])
@pytest.mark.parametrize("value", [60, 128])
def test_shot_noise_has_the_variance_of_counted_photons(
    severity: int, photons: int, value: int
) -> None:
    noisy = corrupt(constant(value, num=20), "shot_noise", severity) / 255
    assert noisy.var() == pytest.approx(value / 255 / photons, rel=0.04)
    assert 255 * noisy.mean() == pytest.approx(value, abs=0.8)


@pytest.mark.parametrize(
    ("severity", "share"), [(1, 0.01), (2, 0.02), (3, 0.03), (4, 0.05), (5, 0.07)]
)
def test_impulse_noise_turns_half_of_the_share_white(severity: int, share: float) -> None:
    noisy = corrupt(constant(100, num=50), "impulse_noise", severity)
    expected = pytest.approx(share / 2, abs=4 * math.sqrt(share / 2 / noisy.size))
    assert (noisy == 255).mean() == expected
    assert (noisy == 0).mean() == expected
    assert set(np.unique(noisy)) == {0, 100, 255}
    # Every channel for itself: hardly a pixel is hit in all three.
    assert (noisy != 100).all(axis=1).mean() < 0.002


# Blur


@pytest.mark.parametrize(
    ("severity", "centre", "side", "corner"),
    [
        # One pixel softened by exp(-1 / (2 sigma^2)), sigma = 0.4, 0.5, 0.6.
        (1, 215, 9, 0),
        (2, 157, 21, 2),
        (3, 113, 28, 7),
        (4, 51, 51, 0),  # five pixels, 255 / 5
        (5, 28, 28, 28),  # nine pixels, 255 / 9
    ],
)
def test_defocus_spreads_a_point_into_the_published_disk(
    severity: int, centre: int, side: int, corner: int
) -> None:
    spot = corrupt(one_white_pixel(), "defocus_blur", severity)[0, 1, 13:20, 13:20]
    expected = np.zeros((7, 7), dtype=int)
    expected[2:5, 2:5] = corner
    expected[2:5, 3] = expected[3, 2:5] = side
    expected[3, 3] = centre
    assert spot.tolist() == expected.tolist()


def test_defocus_mirrors_without_repeating_the_border() -> None:
    image = constant(0)
    image[..., 1] = 255
    assert corrupt(image, "defocus_blur", 5)[0, 0, 16, 0] == 170  # columns 1, 0, 1: two thirds


def coordinate_image() -> Pixels:
    image = constant(0)
    image[0, 0] = 8 * np.arange(32)[:, None]
    image[0, 1] = 8 * np.arange(32)
    return image


def test_glass_takes_colours_from_up_and_left() -> None:
    glass = np.concatenate(
        [corrupt(coordinate_image(), "glass_blur", 1, seed=seed)[:, :2] for seed in range(20)]
    )
    shift = np.indices((32, 32)) - np.rint(glass / 8).astype(int)
    assert set(np.unique(shift)) == {0, 1}
    assert (shift[:, :, :2] == 0).all()
    assert (shift[:, :, :, :2] == 0).all()
    moved = shift[:, :, 2:, 2:]
    for dy, dx in itertools.product((0, 1), repeat=2):
        share = ((moved[:, 0] == dy) & (moved[:, 1] == dx)).mean()
        assert share == pytest.approx(0.25, abs=0.02)

    # The published loop, its swap written through views, does the same to an image.
    once = corrupt(coordinate_image(), "glass_blur", 1, seed=0)[0, :2]
    dy, dx = np.indices((32, 32)) - np.rint(once / 8).astype(int)
    image = coordinate_image()[0].transpose(1, 2, 0).copy()
    for row, col in itertools.product(range(31, 1, -1), repeat=2):
        here, there = image[row, col], image[row - dy[row, col], col - dx[row, col]]
        here[:], there[:] = there, here
    assert np.array_equal(image.transpose(2, 0, 1)[:2], once)


@pytest.mark.parametrize(("severity", "rounds"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_glass_moves_half_a_pixel_on_average_each_round(severity: int, rounds: int) -> None:
    drift = [
        coordinate_image()[0, :2].astype(float)
        - corrupt(coordinate_image(), "glass_blur", severity, seed=seed)[0, :2]
        for seed in range(20)
    ]
    assert np.mean(np.stack(drift)[:, :, 4:-2, 4:-2]) / 8 == pytest.approx(rounds / 2, abs=0.08)


@pytest.mark.parametrize(
    ("severity", "sigma"), [(1, 0.05), (2, 0.25), (3, 0.4), (4, 0.25), (5, 0.4)]
)
def test_glass_blurs_before_and_after(severity: int, sigma: float) -> None:
    # In the first two columns nothing moves, so a white corner shows the two blurs alone.
    image = constant(0)
    image[:, :, 0, 0] = 255
    weight = math.exp(-0.5 / sigma**2)
    beside = weight / (1 + 2 * weight)
    stays = 1 - beside  # the border is repeated outward
    found = corrupt(image, "glass_blur", severity)[0, 0, 0, 0]
    assert found == pytest.approx(255 * (stays**2 + beside**2) ** 2, abs=2)


@pytest.mark.parametrize(
    ("degrees", "row_step", "col_step"), [(0, 0, -1), (90, -1, 0), (-90, 1, 0), (180, 0, 1)]
)
def test_smear_is_half_a_gaussian_to_one_side(degrees: int, row_step: int, col_step: int) -> None:
    spot = (one_white_pixel() / 255).astype(np.float32)
    smeared = _smear(spot, 6, 2.0, np.full((1, 1, 1), degrees, dtype=np.float32))[0, 0]
    weights = [math.exp(-(tap**2) / 8) for tap in range(13)]
    assert smeared.sum() == pytest.approx(1, abs=1e-6)
    for tap, weight in enumerate(weights):
        found = smeared[16 + tap * row_step, 16 + tap * col_step]
        assert found == pytest.approx(weight / sum(weights), abs=1e-6)


def test_motion_blur_runs_within_45_degrees_of_the_horizontal() -> None:
    smeared = corrupt(one_white_pixel(num=200), "motion_blur", 5)[:, 0].astype(float)
    rows, cols = np.indices((32, 32)) - 16
    mass = smeared.sum(axis=(1, 2))
    assert mass == pytest.approx(255, abs=5)  # each of the 19 taps is rounded
    down = (smeared * rows).sum(axis=(1, 2)) / mass
    right = (smeared * cols).sum(axis=(1, 2)) / mass
    angles = np.degrees(np.arctan2(-down, -right))
    assert np.abs(angles).max() < 50
    assert np.histogram(angles, bins=[-50, -20, 0, 20, 50])[0].min() > 30


@pytest.mark.parametrize(("severity", "sigma"), [(1, 1.0), (2, 1.5), (3, 2.0), (4, 2.0), (5, 2.5)])
def test_motion_blur_keeps_the_published_share_in_place(severity: int, sigma: float) -> None:
    kept = corrupt(one_white_pixel(num=20), "motion_blur", severity)[:, 0, 16, 16]
    total = sum(math.exp(-0.5 * (tap / sigma) ** 2) for tap in range(30))
    assert kept == pytest.approx(255 / total, abs=0.6)


def clipped_zoom(image: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """scipy's zoom of the middle of a square (H, W) image, trimmed to its size."""
    side = len(image)
    crop = math.ceil(side / factor)
    top = (side - crop) // 2
    grown = ndimage.zoom(image[top : top + crop, top : top + crop], factor, order=1, mode="nearest")
    trim = (len(grown) - side) // 2
    return np.asarray(grown[trim : trim + side, trim : trim + side])


@pytest.mark.parametrize("factor", [1, 1.01, 1.06, 1.2, 1.25, 1.75, 2.25])
def test_zoom_matches_scipy(factor: float) -> None:
    image = PHOTOGRAPHS[3, 0] / 255
    found = _zoom(image[None, None].astype(np.float32), factor)[0, 0]
    assert found == pytest.approx(clipped_zoom(image, factor), abs=1e-6)


@pytest.mark.parametrize(
    ("severity", "end"), [(1, 1.06), (2, 1.11), (3, 1.16), (4, 1.21), (5, 1.26)]
)
def test_zoom_blur_averages_the_published_factors(severity: int, end: float) -> None:
    image = PHOTOGRAPHS[3] / 255
    factors = np.arange(1, end, 0.01)
    total = image + sum(np.stack([clipped_zoom(c, z) for c in image]) for z in factors)
    expected = whole_levels(total / (len(factors) + 1))
    assert_nearly_all_equal(corrupt(PHOTOGRAPHS[3:4], "zoom_blur", severity)[0], expected)


# Weather


@pytest.mark.parametrize(
    ("severity", "numbers"),
    [
        (1, (0.1, 0.2, 1, 0.6, 8, 3, 0.95)),
        (2, (0.1, 0.2, 1, 0.5, 10, 4, 0.9)),
        (3, (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9)),
        (4, (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85)),
        (5, (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
    ],
)
def test_snow_matches_a_slow_loop(severity: int, numbers: tuple[float, ...]) -> None:
    mean, spread, factor, threshold, radius, sigma, kept = numbers
    rng = np.random.default_rng(8)
    layer = mean + spread * rng.standard_normal((1, 32, 32), dtype=np.float32)[0].astype(float)
    angle = math.radians(-135 + 90 * float(rng.random(dtype=np.float32)))
    layer = clipped_zoom(layer, factor)
    layer[layer < threshold] = 0
    layer = whole_levels(layer) / 255
    weights = [math.exp(-0.5 * (tap / sigma) ** 2) for tap in range(2 * int(radius) + 1)]
    fallen = np.zeros((32, 32))
    for row, col, (tap, weight) in itertools.product(range(32), range(32), enumerate(weights)):
        above = min(max(row + math.ceil(tap * math.sin(angle) - 0.5), 0), 31)
        beside = min(max(col + math.ceil(tap * math.cos(angle) - 0.5), 0), 31)
        fallen[row, col] += weight / sum(weights) * layer[above, beside]

    image = PHOTOGRAPHS[4] / 255
    grey = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    paled = kept * image + (1 - kept) * np.maximum(image, 1.5 * grey + 0.5)
    expected = whole_levels(paled + fallen + np.rot90(fallen, 2))
    stream = [np.random.default_rng(8)]
    found = CORRUPTIONS["snow"].apply(PHOTOGRAPHS[4:5], severity, stream)[0]
    assert_nearly_all_equal(found, expected)


@pytest.mark.parametrize(
    ("severity", "kept", "ice"),
    [(1, 1, 0.2), (2, 1, 0.3), (3, 0.9, 0.4), (4, 0.85, 0.4), (5, 0.75, 0.45)],
)
def test_frost_blends_with_the_published_weights(severity: int, kept: float, ice: float) -> None:
    frost = frost_crops(np.random.default_rng(2).random((1, 3), dtype=np.float32), 32, 32)[0]
    expected = np.floor(np.clip(kept * PHOTOGRAPHS[6] + ice * frost, 0, 255) + 1e-3)
    stream = [np.random.default_rng(2)]
    found = CORRUPTIONS["frost"].apply(PHOTOGRAPHS[6:7], severity, stream)[0]
    assert_nearly_all_equal(found, expected.astype(np.uint8))


@pytest.mark.parametrize(
    ("severity", "thickness", "decay"),
    [(1, 0.2, 3), (2, 0.5, 3), (3, 0.75, 2.5), (4, 1, 2), (5, 1.5, 1.75)],
)
def test_fog_matches_a_slow_loop(severity: int, thickness: float, decay: float) -> None:
    clouds = slow_plasma(np.random.default_rng(5).random((32, 32), dtype=np.float32), decay)
    image = PHOTOGRAPHS[7] / 255
    expected = (image + thickness * clouds) * image.max() / (image.max() + thickness)
    found = CORRUPTIONS["fog"].apply(PHOTOGRAPHS[7:8], severity, [np.random.default_rng(5)])[0]
    assert_nearly_all_equal(found, whole_levels(expected))


@pytest.mark.parametrize(("severity", "more"), [(1, 0.05), (2, 0.1), (3, 0.15), (4, 0.2), (5, 0.3)])
def test_brightness_matches_colorsys(severity: int, more: float) -> None:
    image = PHOTOGRAPHS[8:9].copy()
    image[0, :, 0, :3] = [[0, 255, 255], [0, 255, 0], [0, 255, 0]]  # black, white, pure red
    expected = np.zeros(image.shape[1:])
    for row, col in itertools.product(range(32), repeat=2):
        h, s, v = colorsys.rgb_to_hsv(*(image[0, :, row, col] / 255))
        expected[:, row, col] = colorsys.hsv_to_rgb(h, s, min(v + more, 1))
    assert np.array_equal(corrupt(image, "brightness", severity)[0], whole_levels(expected))


def test_values_are_cut_down_not_rounded() -> None:
    assert (corrupt(constant(0), "brightness", 1) == 12).all()  # 0.05 * 255 = 12.75


# Digital


@pytest.mark.parametrize(
    ("severity", "dark", "light"),
    [(1, 25, 175), (2, 50, 150), (3, 60, 140), (4, 70, 130), (5, 85, 115)],
)
def test_contrast_draws_each_channel_to_its_own_mean(severity: int, dark: int, light: int) -> None:
    image = constant(0)
    image[0, 0, :16] = 200  # mean 100
    image[0, 1] = 40
    faded = corrupt(image, "contrast", severity)[0]
    assert (faded[0, :16] == light).all()
    assert (faded[0, 16:] == dark).all()
    assert (faded[1] == 40).all()
    assert (faded[2] == 0).all()


@pytest.mark.parametrize(
    ("severity", "length", "smooth", "jitter"),
    [
        (1, 0, 0, 0.08),
        (2, 0.05, 0.2, 0.07),
        (3, 0.08, 0.06, 0.06),
        (4, 0.1, 0.04, 0.05),
        (5, 0.1, 0.03, 0.03),
    ],
)
def test_elastic_matches_scipy(severity: int, length: float, smooth: float, jitter: float) -> None:
    rng = np.random.default_rng(4)
    before = np.array([[26, 26], [26, 6], [6, 6]])  # x, y: the centre 16, a third of the side 10
    after = before + 32 * jitter * (2 * rng.random((3, 2), dtype=np.float32).astype(float) - 1)
    # Six equations for the forward map, then its inverse.
    forward = np.linalg.solve(np.column_stack([before, np.ones(3)]), after).T
    inverse = np.linalg.inv(np.vstack([forward, [0, 0, 1]]))
    y, x = np.indices((32, 32)).astype(float)
    from_x, from_y, _ = np.tensordot(inverse, np.stack([x, y, np.ones_like(x)]), axes=1)
    dx, dy = (
        32 * length * ndimage.gaussian_filter(noise, 32 * smooth, mode="reflect", truncate=3)
        for noise in 2 * rng.random((2, 32, 32), dtype=np.float32).astype(float) - 1
    )
    expected = []
    for channel in PHOTOGRAPHS[9] / 255:
        bent = ndimage.map_coordinates(channel, [from_y, from_x], order=1, mode="mirror")
        expected.append(ndimage.map_coordinates(bent, [y + dy, x + dx], order=1, mode="reflect"))
    stream = [np.random.default_rng(4)]
    found = CORRUPTIONS["elastic_transform"].apply(PHOTOGRAPHS[9:10], severity, stream)[0]
    assert_nearly_all_equal(found, whole_levels(np.stack(expected)))


@pytest.mark.parametrize(("severity", "side"), [(1, 30), (2, 28), (3, 27), (4, 24), (5, 20)])
def test_pixelate_is_pillow_there_and_back(severity: int, side: int) -> None:
    image = Image.fromarray(np.ascontiguousarray(PHOTOGRAPHS[2].transpose(1, 2, 0)))
    box = Image.Resampling.BOX
    expected = np.asarray(image.resize((side, side), box).resize((32, 32), box))
    found = corrupt(PHOTOGRAPHS[2:3], "pixelate", severity)[0]
    assert np.array_equal(found, expected.transpose(2, 0, 1))


@pytest.mark.parametrize(("severity", "quality"), [(1, 80), (2, 65), (3, 58), (4, 50), (5, 40)])
def test_jpeg_is_pillow_there_and_back(severity: int, quality: int) -> None:
    file = BytesIO()
    image = Image.fromarray(np.ascontiguousarray(PHOTOGRAPHS[2].transpose(1, 2, 0)))
    image.save(file, "JPEG", quality=quality)
    found = corrupt(PHOTOGRAPHS[2:3], "jpeg_compression", severity)[0]
    assert np.array_equal(found, np.asarray(Image.open(file)).transpose(2, 0, 1))


# Errors


def test_an_unknown_name_meets_the_nearest_known() -> None:
    with pytest.raises(UsageError, match=r"Unknown corruption 'frst'\. Did you mean 'frost'"):
        corrupt(OBLONG, "frst", 1)


@pytest.mark.parametrize("severity", [0, 6, -1])
def test_severities_run_from_one_to_five(severity: int) -> None:
    with pytest.raises(UsageError, match=f"1, 2, 3, 4, 5, got {severity}"):
        corrupt(OBLONG, "fog", severity)


def test_floats_are_refused() -> None:
    with pytest.raises(UsageError, match=r"uint8 in 0\.\.255, got float64"):
        corrupt(OBLONG / 255, "fog", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 32, 32, 3), (2, 1, 32, 32), (2, 3, 7, 32)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"must be \(N, 3, H, W\)"):
        corrupt(np.zeros(shape, dtype=np.uint8), "fog", 1)


# The official files


@pytest.fixture
def fog_file(tmp_path: Path) -> Path:
    """Black images (a hole in the disk, so quick), with the severity written into two corners."""
    path = tmp_path / "fog.npy"
    file = np.lib.format.open_memmap(path, "w+", dtype=np.uint8, shape=(50_000, 32, 32, 3))
    for severity in SEVERITIES:
        file[10_000 * (severity - 1), 0, 31, 2] = severity
        file[10_000 * severity - 1, 31, 0, 0] = 10 * severity
    file.flush()
    return path


@pytest.mark.parametrize("severity", SEVERITIES)
def test_official_files_are_read_by_severity(fog_file: Path, severity: int) -> None:
    images = read_cifar10c(fog_file.parent, "fog", severity)
    assert images.shape == (10_000, 3, 32, 32)
    assert images.dtype == np.uint8
    assert not images.flags.writeable
    assert images[0, 2, 0, 31] == severity
    assert images[-1, 0, 31, 0] == 10 * severity
    assert images[[0, -1]].sum() == 11 * severity


def test_a_missing_official_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"snow\.npy, found none\. Download"):
        read_cifar10c(tmp_path, "snow", 1)


def test_official_names_and_severities_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'snow'"):
        read_cifar10c(tmp_path, "snw", 1)
    with pytest.raises(UsageError, match="got 6"):
        read_cifar10c(tmp_path, "snow", 6)


@pytest.mark.parametrize(
    "stored",
    [
        np.zeros((5, 32, 32, 3), dtype=np.uint8),
        np.zeros((5, 32, 32, 3), dtype=np.float32),
        np.array([{"not": "numbers"}], dtype=object),
    ],
)
def test_an_official_file_of_another_form_is_refused(
    tmp_path: Path, stored: NDArray[np.generic]
) -> None:
    np.save(tmp_path / "fog.npy", stored)
    with pytest.raises(DataCorrupt, match=r"fog\.npy should hold uint8 \(50000, 32, 32, 3\)"):
        read_cifar10c(tmp_path, "fog", 1)


@pytest.mark.parametrize("size", [0, 5, 60, 1000, 153_600_000])
def test_a_truncated_official_file_is_refused(fog_file: Path, size: int) -> None:
    with fog_file.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(DataCorrupt, match=r"cannot be read: .*Download CIFAR-10-C again"):
        read_cifar10c(fog_file.parent, "fog", 1)


def test_a_damaged_header_never_escapes_as_another_error(fog_file: Path) -> None:
    with fog_file.open("r+b") as file:
        header = file.read(80)
        for position, damage in itertools.product(range(80), (0x01, 0x08, 0x80)):
            file.seek(position)
            file.write(bytes([header[position] ^ damage]))
            file.flush()
            with pytest.raises(DataCorrupt, match="should hold uint8"):
                read_cifar10c(fog_file.parent, "fog", 1)
            file.seek(position)
            file.write(header[position : position + 1])


def test_the_numbers_are_the_published_ones() -> None:
    """By severity, as CIFAR-10-C was made with; many move an image by less than its noise."""
    assert corruptions._GAUSSIAN_STD == (0.04, 0.06, 0.08, 0.09, 0.10)
    assert corruptions._SHOT_PHOTONS == (500, 250, 100, 75, 50)
    assert corruptions._IMPULSE_SHARE == (0.01, 0.02, 0.03, 0.05, 0.07)
    assert corruptions._DEFOCUS == ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
    assert corruptions._GLASS == ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
    assert corruptions._MOTION == ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))
    assert corruptions._ZOOM_END == (1.06, 1.11, 1.16, 1.21, 1.26)
    assert corruptions._SNOW == (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )
    assert corruptions._FROST == ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    assert corruptions._FOG == ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))
    assert corruptions._BRIGHTNESS == (0.05, 0.1, 0.15, 0.2, 0.3)
    assert corruptions._CONTRAST == (0.75, 0.5, 0.4, 0.3, 0.15)
    assert corruptions._ELASTIC == ((0, 0, 8), (5, 20, 7), (8, 6, 6), (10, 4, 5), (10, 3, 3))
    assert corruptions._PIXELATE == (0.95, 0.9, 0.85, 0.75, 0.65)
    assert corruptions._JPEG_QUALITY == (80, 65, 58, 50, 40)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_strengths_are_those_that_were_published(name: str) -> None:
    """Of a constant that moves by a hundredth the change moves by more than this tolerance."""
    images = photographs()
    found = [np.abs(corrupt(images, name, s).astype(int) - images).mean() for s in SEVERITIES]
    assert found == pytest.approx(CHANGE[name], rel=5e-4)


def test_grey_and_deep_images_are_corrupted_like_colour() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (3, 1, 32, 32), dtype=np.uint8)
    colour = corrupt(np.repeat(grey, 3, axis=1), "gaussian_noise", 2)
    found = corrupt_any(grey, "gaussian_noise", 2)
    assert (found == colour.mean(axis=1, keepdims=True).round()).all()
    deep = corrupt_any(grey.astype(np.uint16) * 257, "gaussian_noise", 2)
    assert deep.dtype == np.uint16
    assert (deep == found.astype(np.uint16) * 257).all()
    three = np.repeat(grey, 3, axis=1)
    assert (corrupt_any(three, "fog", 1) == corrupt(three, "fog", 1)).all()
