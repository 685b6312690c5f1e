from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small products gain nothing from threads, and wait for each other on a busy machine."""
    with threadpool_limits(1):
        yield
