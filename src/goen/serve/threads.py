"""The threads that decode images, shared by all requests."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from goen.errors import GoenError
from goen.serve.rejection import Rejected

_Result = TypeVar("_Result")
LARGE = 4_000_000
"""Values of an image from which on it waits for other large ones: a tenth of a second or more."""


class Deferred(GoenError):  # noqa: N818  (what decodes lets only these out)
    """Raised by work that turns out to be long: what is left of it."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__("This is long work.")
        self.work = work


class DecodingThreads:
    """Threads for short work, and others for work that was deferred because it is long.

    The long work of one client never takes all processors from the short work of others: it has
    one thread less than there are processors.

    Args:
        most: threads for short work; as many as there are processors, and at least two, if not
            given.

    Attributes:
        most: the same. So many images of one request are decoded at once; then the next request
            has its turn.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most or max(2, os.cpu_count() or 1)
        self._short = ThreadPoolExecutor(self.most, "goen decoding")
        self._long = ThreadPoolExecutor(self.most - 1, "goen decoding of large images")
        self._until = float("inf")

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """What it returns; the loop that answers requests does not wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._short, work)

    async def decode(self, work: Callable[[], _Result]) -> _Result:
        """What it returns, also if it was deferred.

        Raises:
            Rejected: the service stops, and the work has not begun.
        """
        try:
            return await self.run(lambda: self._begun(work))
        except Deferred as deferred:
            left = deferred.work
        found = await asyncio.get_running_loop().run_in_executor(
            self._long, lambda: self._begun(left)
        )
        return found  # type: ignore[return-value]

    def _begun(self, work: Callable[[], _Result]) -> _Result:
        if time.monotonic() > self._until:
            raise Rejected("busy", "The service is stopping.")
        return work()

    def stop_in(self, seconds: float) -> None:
        """Decode no image that has not been begun by then."""
        self._until = time.monotonic() + seconds

    def shutdown(self) -> None:
        """End after what was begun."""
        self.stop_in(0)
        self._long.shutdown()
        self._short.shutdown()


class PixelBudget:
    """The values that all images of one request may have together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self._lock = Lock()

    def take(self, values: int) -> None:
        """Count an image before it is decoded.

        Raises:
            Rejected: it is too much with those before.
        """
        with self._lock:
            if self._taken + values > self.most:
                raise Rejected(
                    "too_many_pixels",
                    f"The images of this request have more than {self.most:,} pixels together. "
                    "Send fewer at once.",
                )
            self._taken += values
