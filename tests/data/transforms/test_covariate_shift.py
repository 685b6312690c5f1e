"""Half of the test images corrupted: which, how, and what stays."""

from dataclasses import replace

import numpy as np
import pytest

from goen.data import ImageSet, Protocol
from goen.data.transforms.covariate_shift import full_spectrum
from goen.errors import UsageError
from tests.own_model import digits


def test_half_of_the_images_are_corrupted_and_nothing_else_changes() -> None:
    p = digits()
    shifted = full_spectrum(p)
    before, after = p.test.read(), shifted.test.read()
    changed = (before != after).any(axis=(1, 2, 3))
    # A few corruptions leave an image as it is, none of the others is touched.
    assert 0.4 * len(before) < changed.sum() <= len(before) // 2
    assert (shifted.test.labels == p.test.labels).all()
    assert shifted.test.classes == p.test.classes
    assert shifted.name == f"{p.name}-fs"
    assert shifted.test.fingerprint != p.test.fingerprint
    for role in ("train", "validation", "evaluation"):
        assert getattr(shifted, role) is getattr(p, role)


def test_a_seed_gives_the_same_images_and_another_others() -> None:
    p = digits()
    few = replace(p, test=p.test.take(range(60)))
    first, again, other = (full_spectrum(few, seed).test.read() for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(few.test.read(), p.test.read()[:60])


def test_bands_are_refused() -> None:
    def bands(count: int, seed: int) -> ImageSet:
        rng = np.random.default_rng(seed)
        pixels = rng.integers(0, 255, (count, 5, 8, 8), dtype=np.uint8)
        return ImageSet(f"bands {seed}", pixels, rng.integers(0, 2, count), ("a", "b"))

    made = Protocol.from_sets(bands(20, 0), bands(20, 1), bands(20, 2), {"other": bands(9, 3)})
    with pytest.raises(UsageError, match="colour or grey; bands 2 has 5 channels"):
        full_spectrum(made)
