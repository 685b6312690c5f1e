import pytest

from tests.data.local_sets import PER_BATCH, shrink


@pytest.fixture
def cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, "cifar10", train=5 * PER_BATCH, test=PER_BATCH)
