import numpy as np
from scipy.stats import norm
from sklearn.datasets import load_digits, load_sample_image

from goen.data.sets.embedded import EMBEDDED, digits, noise, photographs


def test_digits_are_sklearns_enlarged_and_grey() -> None:
    images = digits()
    pixels = images.read()
    original = load_digits()
    assert (images.labels == original.target).all()
    assert (pixels[:, 0] == pixels[:, 1]).all()
    assert (pixels[:, 0] == pixels[:, 2]).all()
    # Enlarging by four and averaging blocks of four gives about the original back.
    small = pixels[:, 0].reshape(-1, 8, 4, 8, 4).mean((2, 4)) / 255 * 16
    assert np.abs(small - original.images).mean() < 1


def test_patches_tile_the_photographs_without_overlap() -> None:
    images = photographs()
    assert images.counts() == {"china": 260, "flower": 260}
    photo = load_sample_image("flower.jpg")
    patch = images.read([260 + 20 * 3 + 7])[0]  # row 3, column 7 of a grid 20 patches wide
    assert (patch == photo[96:128, 224:256].transpose(2, 0, 1)).all()
    assert len(np.unique(images.digests)) == 520


def test_noise_is_a_clipped_normal() -> None:
    pixels = noise(400, seed=1).read() / 255
    # P(X <= 0) of N(0.5, 0.5); half a grey level rounds to black as well.
    at_black = norm.cdf(0.5 / 255, 0.5, 0.5)
    assert abs((pixels == 0).mean() - at_black) < 0.002
    assert abs((pixels == 1).mean() - at_black) < 0.002
    inside = pixels[(pixels > 0) & (pixels < 1)]
    assert abs(inside.mean() - 0.5) < 0.002
    edges = np.array([0.2, 0.4, 0.6, 0.8])
    expected = np.diff(norm.cdf(edges, 0.5, 0.5))
    assert np.abs(np.histogram(pixels, edges)[0] / pixels.size - expected).max() < 0.003


def test_noise_is_fixed_by_its_seed_and_streams_share_nothing() -> None:
    assert noise(30, seed=1).fingerprint == noise(30, seed=1).fingerprint
    assert noise(30, seed=1, stream=0).overlap(noise(30, seed=1, stream=1)) == 0
    assert noise(30, seed=1).overlap(noise(30, seed=2)) == 0
    assert noise(600, seed=1).read()[0, 0, 0, :6].tolist() == [230, 12, 255, 255, 0, 0]


def test_noise_of_many_images_is_one_stream() -> None:
    stream = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([3, 2])))
    values = stream.normal(0.5, 0.5, (1030, 3, 4, 4))
    expected = (values.clip(0, 1) * 255).round()
    assert (noise(1030, seed=3, stream=2, shape=(3, 4, 4)).read() == expected).all()


def test_counts_are_as_listed() -> None:
    for name, embedded in EMBEDDED.items():
        assert len(embedded.load()) == embedded.count, name
        assert embedded.load().image_shape == (3, 32, 32)


def test_noise_has_any_shape_and_depth() -> None:
    short, deep = noise(5, seed=1, shape=(2, 4, 6)), noise(5, seed=1, shape=(2, 4, 6), bits=16)
    assert short.image_shape == deep.image_shape == (2, 4, 6)
    assert abs(deep.read() / 65535 - short.read() / 255).max() <= 0.5 / 255 + 1e-9
