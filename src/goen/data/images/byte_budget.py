"""Memory that threads share."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class ByteBudget:
    """A number of bytes that threads share: each holds what it needs, or waits.

    A thread that needs more than there is waits until it is alone.

    Example:
        >>> budget = ByteBudget(10)
        >>> with budget.hold(8):
        ...     budget.used
        8
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._changed = Condition()

    @contextmanager
    def hold(self, needed: int) -> Iterator[None]:
        """Hold so many bytes within this block."""
        with self._changed:
            self._changed.wait_for(lambda: not self.used or self.used + needed <= self.limit)
            self.used += needed
        try:
            yield
        finally:
            with self._changed:
                self.used -= needed
                self._changed.notify_all()
