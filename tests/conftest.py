"""What every test gets: a cache of its own, no data of the machine it runs on."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from goen.data import ImageSet

from .processor import MISSING, guarded, missing_abilities

# On a busy machine an example may take any time; speed is measured in benchmarks/.
settings.register_profile("goen", deadline=None)
settings.load_profile("goen")

# Tests that import onnxruntime themselves must not report to anyone either.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Tests run in several processes; more threads than cores would only wait for each other.
torch.set_num_threads(int(os.environ.get("GOEN_TEST_THREADS", "1")))


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "numprocesses", None):
        missing_abilities()  # once, before the workers start


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    in_processes = config.pluginmanager.hasplugin("xdist")
    # Groups that are named in a file take long: first, or one process would be at them at the end.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    for item in items:
        if in_processes and not item.get_closest_marker("xdist_group"):
            # The tests of files of one name in one process: what a file's tests share is made once.
            item.add_marker(pytest.mark.xdist_group(item.path.name))
        for mark in item.iter_markers("needs"):
            for ability in mark.args:
                if ability in missing_abilities():
                    how = missing_abilities()[ability]
                    reason = f"torch {torch.__version__} on this processor has no {ability}: {how}"
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _no_missing_ability() -> Iterator[None]:
    """Where the processor lacks an ability, a test that forgot its mark fails and kills nothing."""
    with guarded(set(missing_abilities()) if MISSING in os.environ else set()):
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GOEN_DATA", raising=False)


@pytest.fixture
def small_set() -> ImageSet:
    """Twelve different 8×8 images in three classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    return ImageSet("small", pixels, np.arange(12) % 3, ("a", "b", "c"))
