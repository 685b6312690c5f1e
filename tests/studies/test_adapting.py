"""Settings that follow the images: colours, channels, size and number."""

import numpy as np
import pytest

from goen.data import ImageSet, Protocol
from goen.detectors.calibration_head import HeadConfig
from goen.models import NetworkConfig
from goen.studies import PRESETS
from goen.studies.adapting import adapt_head, adapt_length, adapt_network, adapt_training
from goen.studies.presets import choose_preset
from goen.training import TrainingConfig


def some(count: int, shape: tuple[int, int, int], seed: int = 0, deep: bool = False) -> ImageSet:
    dtype = np.uint16 if deep else np.uint8
    most = np.iinfo(dtype).max
    pixels = np.random.default_rng(seed).integers(0, most, (count, *shape), dtype=dtype)
    return ImageSet(f"some {seed}", pixels, np.arange(count) % 2, ("a", "b"))


@pytest.mark.parametrize(("side", "stride"), [(32, 1), (63, 1), (64, 2), (127, 2), (128, 4)])
def test_the_stem_shrinks_large_images(side: int, stride: int) -> None:
    assert adapt_network(NetworkConfig(), some(2, (3, side, side + 8))).stem_stride == stride
    fast = NetworkConfig(architecture="fast_cnn")
    assert adapt_network(fast, some(2, (3, side, side))).stem_stride == 1


@pytest.mark.parametrize("deep", [False, True])
def test_mean_and_deviation_are_those_of_the_images(deep: bool) -> None:
    images = some(150, (5, 8, 8), deep=deep)
    found = adapt_network(NetworkConfig(), images)
    values = images.read() / np.iinfo(images.pixels.dtype).max
    np.testing.assert_allclose(found.mean, values.mean(axis=(0, 2, 3)), atol=1e-4)
    np.testing.assert_allclose(found.std, values.std(axis=(0, 2, 3)), atol=1e-4)
    black = ImageSet("black", np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3), ("a",))
    assert adapt_network(NetworkConfig(), black).std == (0.01,)


def test_shifts_and_smaller_images_are_in_proportion() -> None:
    config = TrainingConfig(padding=3, cutout=8, sizes=((20, 20), (8, 26)), flip="alternating")
    found = adapt_training(config, some(2, (3, 64, 64)), flip=True)
    assert (found.padding, found.cutout, found.sizes) == (6, 16, ((20, 40), (8, 52)))
    assert found.flip == "alternating"
    oblong = adapt_training(config, some(2, (3, 64, 96)), flip=False)
    assert (oblong.sizes, oblong.flip) == ((), "never")


def test_sides_of_smaller_images_are_even() -> None:
    config = TrainingConfig(sizes=((20, 20), (8, 26)))
    found = adapt_training(config, some(2, (3, 40, 40)), flip=True)
    assert found.sizes == ((20, 24), (8, 32))  # of 25 and 32.5


def test_of_many_images_the_colours_are_those_of_some_spread_evenly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goen.studies.adapting._MEASURED", 5)
    pixels = np.arange(201, dtype=np.uint8)[:, None, None, None].repeat(4, axis=3)
    images = ImageSet("grey", pixels, np.zeros(201), ("a",))
    found = adapt_network(NetworkConfig(), images)
    rows = np.array([0, 50, 100, 150, 200]) / 255
    assert found.mean == (round(rows.mean(), 4),)
    assert found.std == (round(rows.std(), 4),)


@pytest.mark.parametrize(
    ("count", "batch", "epochs"),
    # By hand: 1,620,000 / 45,000 = 36; 900 steps of 1 and 15 a pass are more than 60 epochs.
    [(45_000, 128, 36), (1_000_000, 128, 12), (10_000, 128, 60), (498, 16, 60), (29, 16, 300)],
)
def test_length_follows_the_number_of_images(count: int, batch: int, epochs: int) -> None:
    cpu = PRESETS["cpu"].training
    found = adapt_length(cpu, count)
    assert (found.batch_size, found.epochs) == (batch, epochs)
    assert found.learning_rate == pytest.approx(0.15 * batch / 128)
    # Of 36 epochs, 20 and 8 are of smaller images.
    assert [n for n, _ in found.sizes] == [max(1, n * epochs // 36) for n in (20, 8)]
    assert [side for _, side in found.sizes] == [20, 26]


def test_few_images_calibrate_in_small_batches() -> None:
    counts = (65, 319, 320, 500, 639, 640, 1279, 1280, 3000)
    sizes = [adapt_head(HeadConfig(), n).batch_size for n in counts]
    assert sizes == [16, 16, 32, 32, 32, 64, 64, 128, 128]
    assert adapt_head(HeadConfig(batch_size=8), 3000).batch_size == 8


def test_own_images_get_an_adapted_preset_and_named_ones_do_not(digits: Protocol) -> None:
    sets = [some(60, (1, 64, 64), seed) for seed in range(3)]
    own = Protocol.from_sets(*sets, name="digits", flip=False)
    assert own.name == "own digits"
    preset = choose_preset("auto", own, "full", 7)
    assert (preset.network.channels, preset.network.stem_stride) == (1, 2)
    assert preset.network.num_classes == 2
    assert (preset.training.flip, preset.training.seed) == ("never", 7)
    named = choose_preset("paper", own, "full", 7)
    assert (named.training.epochs, named.training.batch_size) == (40, 128)  # as it says
    assert named.network.channels == 1
    kept = choose_preset("digits", digits, "full", 42)
    assert kept.training == PRESETS["digits"].training
    assert kept.network == PRESETS["digits"].network


@pytest.fixture
def digits() -> Protocol:
    from goen.data import protocol

    return protocol("digits")
