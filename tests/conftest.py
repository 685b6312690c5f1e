"""What every test gets: a cache of its own, no data of the machine it runs on."""

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import settings

from goen.data import ImageSet
from tests.extras import missing_extra
from tests.processor import MISSING, guarded, missing_abilities

Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)

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


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports a package of an extra that is not installed."""
    report = yield
    if _skipped(report, collector.path).skipped:
        for name, module in [*sys.modules.items()]:  # others would import the half that was read
            if getattr(module, "__file__", None) == str(collector.path):
                del sys.modules[name]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that fails for want of an extra that is not installed."""
    report = yield
    return _skipped(report, item.path)


def _skipped(report: Report, path: Path) -> Report:
    reason = (
        missing_extra(report.longreprtext + report.caplog + report.capstderr)
        if report.failed
        else None
    )
    if reason:
        report.outcome = "skipped"
        report.longrepr = (str(path), 0, f"Skipped: {reason}")
    return report


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
