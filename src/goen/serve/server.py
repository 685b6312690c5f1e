"""The server: uvicorn with limits on connections, headers and time, and a clean end."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from logging import getLogger
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from goen.errors import UsageError
from goen.serve.app import make_app
from goen.serve.guard import RESERVED, SECURITY_HEADERS, Guard
from goen.serve.service import Service
from goen.serve.settings import Limits

_log = getLogger(__name__)
_BACKLOG = 1024
# Connections that are accepted before any is read: of hundreds at once, each is read before it
# could be the one that was idle longest.
_ACCEPTED_AT_ONCE = 16
# Bytes without a complete header section or a piece of a body: headers, trailers, chunk extensions.
_HEADER_BYTES = 16 << 10
# A read is parsed in one go, so its size bounds how long one connection holds the event loop.
_READ_BYTES = 32 << 10
# Beyond so many chunks a body must have so many bytes per chunk: each chunk is a call in Python.
_FREE_CHUNKS, _LEAST_CHUNK = 64, 64
# Connections beyond the limit that may ask for the health of the service, and nothing else.
_RESERVE = 32
_LINGER_SECONDS = 1.0


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        UsageError: the address is taken, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, or asyncio would not turn Nagle's algorithm off: 40 ms per answer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(
            f"Cannot listen on {host}, port {port}: {reason}. Choose another with --port or --host."
        ) from error
    return listening


def serve(
    service: Service, listening: socket.socket, on_ready: Callable[[str], None] = lambda url: None
) -> bool:
    """Answer requests until SIGTERM or Ctrl-C; then answer what was accepted, and save.

    Returns whether every monitor could be saved at the end.

    Args:
        service: not yet running.
        listening: of ``open_socket``.
        on_ready: is told the address when the service is ready.
    """
    server = Server(service, on_ready)
    with service.running():
        server.run([listening])
    app = server.app
    _log.info("%s", json.dumps({"accepted": app.accepted, "answered": app.answered}))
    return not service.unsaved


def address(listening: socket.socket) -> str:
    """As a browser needs it."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


class Server(uvicorn.Server):
    """uvicorn with the limits of a service."""

    def __init__(
        self, service: Service, on_ready: Callable[[str], None] = lambda url: None
    ) -> None:
        self.app: Guard = make_app(service)
        self.on_ready = on_ready
        limits = service.settings.limits
        super().__init__(
            uvicorn.Config(
                self.app,
                http=type("Protocol", (_LimitedProtocol,), {"limits": limits}),
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_ACCEPTED_AT_ONCE,
                headers=list(SECURITY_HEADERS.items()),
                timeout_keep_alive=limits.idle_seconds,
                timeout_graceful_shutdown=limits.drain_seconds,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        assert sockets
        for listening in sockets:
            listening.listen(_BACKLOG)  # more may wait for their turn than asyncio takes at once
        self.on_ready(address(sockets[0]))

    async def on_tick(self, counter: int) -> bool:
        """End connections that take too long; uvicorn calls this ten times a second."""
        now = time.monotonic()
        for connection in list(self.server_state.connections):
            assert isinstance(connection, _LimitedProtocol)
            connection.check(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was accepted; what is not decoded in half the time is refused."""
        self.app.service.ready.clear()
        self.app.service.threads.stop_in(self.app.service.settings.limits.drain_seconds / 2)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at a signal; uvicorn would raise it again before the monitors are saved."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


class _LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol on a parser in C, with the limits that uvicorn does not have.

    uvicorn bounds the time between requests (``timeout_keep_alive``), but not that until the first
    headers, nor that of a client that does not read its answer; httptools does not bound the size
    of headers or the number of chunks; and ``limit_concurrency`` refuses health probes with the
    rest. ``check`` and ``data_received`` do these.
    """

    limits = Limits()
    _phase: object = None
    _since: float
    _without_progress = _chunks = _body_bytes = 0
    _ended = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room: the longest idle connection ends; if there is none, only health is told."""
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        super().connection_made(transport)
        self._since = time.monotonic()
        others: list[Any] = [other for other in self.connections if other is not self]
        excess = len(others) + 1 - self.limits.connections
        mine = [other for other in others if other.address == self.address]
        if len(mine) >= self.limits.connections_per_address:
            excess = max(excess, len(mine) + 1 - self.limits.connections_per_address)
            others = mine
        if excess <= 0:
            return
        idle = [other for other in others if other.is_idle()]
        if idle:
            min(idle, key=lambda other: other._since).transport.abort()
        elif excess <= _RESERVE:
            self.app_state = {RESERVED: True}
        else:
            self._answer_and_close(503, "Too many connections. Try again in a second.")

    @property
    def address(self) -> str:
        """Of the client."""
        return self.client[0] if self.client else ""

    def is_idle(self) -> bool:
        """Whether no request has come since the last answer."""
        awaited = self.cycle is None or self.cycle.response_complete
        return awaited and not self._ended and not self.transport.is_closing()

    def check(self, now: float) -> None:
        """End the connection if it is for too long what it is."""
        limits = self.limits
        if self.transport.is_closing():
            phase, most, end = "closing", limits.body_seconds, self.transport.abort
        elif self._ended:
            phase, most, end = "lingering", _LINGER_SECONDS, self.transport.close
        elif self.flow.write_paused:
            phase, most, end = "writing", limits.body_seconds, self.transport.abort
        elif self.is_idle() and self.timeout_keep_alive_task is None:
            phase, most, end = "headers", limits.header_seconds, self._too_slow
        else:  # being answered, or between requests: others bound it
            phase, most, end = "", float("inf"), self.transport.abort
        if (phase, self.cycle) != self._phase:
            self._phase = (phase, self.cycle)
            self._since = now
        elif now - self._since > most:
            end()

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless it is bytes without end that are neither headers nor body."""
        for start in range(0, len(data), _HEADER_BYTES):
            if self._ended or self.transport.is_closing():
                return
            part = data[start : start + _HEADER_BYTES]
            before = (self.cycle, self._body_bytes)
            super().data_received(part)
            if (self.cycle, self._body_bytes) != before:
                self._without_progress = 0
            else:
                self._without_progress += len(part)
                if self._without_progress > _HEADER_BYTES and not self._ended:
                    self.send_400_response("")

    def on_headers_complete(self) -> None:
        """Begin a request, unless it is for two hosts; an error here is answered with 400.

        Others that could be read in two ways (two lengths, a line that ends in LF alone, a header
        of two lines) the parser refuses.
        """
        if sum(name == b"host" for name, _ in self.headers) > 1:
            raise ValueError("several hosts")
        super().on_headers_complete()

    def on_message_begin(self) -> None:
        """Restart the counts."""
        super().on_message_begin()
        self._chunks = self._body_bytes = 0

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body; an error here is answered with 400."""
        self._chunks += 1
        self._body_bytes += len(body)
        if self._chunks > _FREE_CHUNKS and self._body_bytes < _LEAST_CHUNK * self._chunks:
            raise ValueError("chunks too small")
        super().on_body(body)

    def shutdown(self) -> None:
        """At the end of the service."""
        if self._ended:
            self.transport.close()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer garbage in our words."""
        text = "This is not an HTTP request, or its headers are too long or its chunks too small."
        self._answer_and_close(400, text)

    def _too_slow(self) -> None:
        self._answer_and_close(408, "The headers of the request did not come in time.")

    def _answer_and_close(self, status: int, text: str) -> None:
        """uvicorn closes at once; with data unread that would reset the connection first."""
        self._ended = True
        if self.cycle is not None and not self.cycle.response_complete:
            # What it would answer cannot be sent any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        body = json.dumps({"error": text}).encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *([(b"retry-after", b"1")] if status == 503 else []),
        ]
        lines = [b"%s: %s" % header for header in headers]
        self.transport.write(b"\r\n".join([STATUS_LINE[status][:-2], *lines, b"", body]))
        self.transport.write_eof()
