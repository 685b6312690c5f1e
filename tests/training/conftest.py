import numpy as np
import pytest

from goen.data import ImageSet


@pytest.fixture
def images() -> ImageSet:
    """Sixty-four 16×16 images whose colour is their class."""
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 3
    pixels = rng.integers(0, 60, (64, 3, 16, 16), dtype=np.uint8)
    pixels[np.arange(64), labels] += 150
    return ImageSet("colours", pixels, labels, ("r", "g", "b"))
