"""What every test gets: a cache of its own, no data of the machine it runs on."""

from pathlib import Path

import numpy as np
import pytest
import torch

from goen.data import ImageSet

# Tests run in several processes; more threads than cores would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GOEN_DATA", raising=False)


@pytest.fixture
def small_set() -> ImageSet:
    """Twelve different 8×8 images in three classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    return ImageSet("small", pixels, np.arange(12) % 3, ("a", "b", "c"))
