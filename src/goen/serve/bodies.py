"""Reading the body of a request: bounded in bytes, in memory and in time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from goen.serve.rejection import Rejected
from goen.serve.settings import MEGABYTE, Limits


class Bodies:
    """The bodies that a service holds in memory.

    Starlette's ``max_body_size`` bounds one body, but neither all together nor their time.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body, for as long as the block lasts.

        Raises:
            Rejected: it is too large, comes too slowly, is compressed, or all bodies together are
                too large.
            ClientDisconnect: the client left.
        """
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Rejected("bad_request", "Send the body as it is, without a Content-Encoding.")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.limits.body:  # checked by the parser
            raise self._too_large()
        parts: list[bytes] = []
        taken = 0
        try:
            try:
                async with asyncio.timeout(self.limits.body_seconds):
                    async for part in request.stream():
                        taken += len(part)
                        self.held += len(part)
                        parts.append(part)
                        self._check(taken)
            except TimeoutError as error:
                seconds = f"{self.limits.body_seconds:g} seconds"
                raise Rejected("slow", f"The body did not come within {seconds}.") from error
            body = b"".join(parts)
            parts.clear()  # else it would be in memory twice
            yield body
        finally:
            self.held -= taken

    def _check(self, taken: int) -> None:
        if taken > self.limits.body:
            raise self._too_large()
        if self.held > self.limits.bodies:
            raise Rejected("busy", "Too many large requests at once. Try again in a second.")

    def _too_large(self) -> Rejected:
        most = f"{self.limits.body / MEGABYTE:g} MB"
        return Rejected("too_large", f"A request has at most {most}. Send a smaller one, or fewer.")
