"""The server: uvicorn with limits on connections and on the time of headers, and a clean end."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import getLogger
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from goen.errors import UsageError
from goen.serve.app import make_app
from goen.serve.guard import ABORT, SECURITY_HEADERS, Guard
from goen.serve.service import Service
from goen.serve.settings import Limits

_log = getLogger(__name__)
_HEADER_BYTES = 16 << 10
_BACKLOG = 1024
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
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; then answer what was accepted, save and return.

    Args:
        service: not yet running.
        listening: of ``open_socket``.
        on_ready: is told the address when the service is ready.
    """
    limits = service.settings.limits
    app = make_app(service)
    config = uvicorn.Config(
        app,
        http=limited_protocol(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=limits.drain_seconds,
        h11_max_incomplete_event_size=_HEADER_BYTES,
    )
    server = _Server(config, app, on_ready)
    with service.running():
        server.run([listening])
    _log.info("%s", json.dumps({"accepted": app.accepted, "answered": app.answered}))


def address(listening: socket.socket) -> str:
    """As a browser needs it."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: Guard, on_ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self.guard, self.on_ready = app, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets
        self.on_ready(address(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.guard.service.ready.clear()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End cleanly at a signal; uvicorn would raise it again afterwards."""

        def end(number: int, frame: FrameType | None) -> None:
            self.force_exit = self.should_exit and number == signal.SIGINT
            self.should_exit = True

        handled = (signal.SIGINT, signal.SIGTERM)
        try:
            before = {number: signal.signal(number, end) for number in handled}
        except ValueError:  # not the main thread, as in tests: whoever started it ends it
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _EndingTransport:
    """A transport that ends some seconds after it was closed.

    By itself it waits until the client has read everything, which one that never reads does not.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seconds: float
    ) -> None:
        self._transport, self._loop, self._seconds = transport, loop, seconds

        self._abort: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._transport.close()
        if self._abort is None:
            self._abort = self._loop.call_later(self._seconds, self._transport.abort)

    def lost(self) -> None:
        """The connection has ended: there is nothing to abort."""
        if self._abort is not None:
            self._abort.cancel()


def limited_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol of a server with these limits."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits})


class _LimitedProtocol(H11Protocol):
    """uvicorn's protocol, which closes what sends no headers, and answers garbage in our words."""

    limits = Limits()
    _waiting: asyncio.TimerHandle | None = None
    _ended = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._ending = _EndingTransport(transport, self.loop, self.limits.body_seconds)
        super().connection_made(self._ending)  # type: ignore[arg-type]
        answer = self.app

        async def with_abort(scope: Scope, receive: Receive, send: Send) -> None:
            scope[ABORT] = transport.abort
            await answer(scope, receive, send)

        self.app = with_abort
        if len(self.connections) > self.limits.connections:
            self._answer_and_close(503, "Too many connections. Try again in a second.")
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._ending.lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._arrived()
        elif not (self._waiting or self.timeout_keep_alive_task or self.transport.is_closing()):
            self._wait()  # headers after an answer, when uvicorn no longer counts it as idle

    def shutdown(self) -> None:
        if self._ended:
            self.transport.close()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._answer_and_close(400, "This is not an HTTP request, or its headers are too long.")

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.limits.header_seconds, self._too_slow)

    def _arrived(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _too_slow(self) -> None:
        self._waiting = None
        if not self.transport.is_closing():
            self._answer_and_close(408, "The headers of the request did not come in time.")

    def _answer_and_close(self, status: int, text: str) -> None:
        body = json.dumps({"error": text}).encode()
        headers = {
            **SECURITY_HEADERS,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        if status == 503:
            headers["retry-after"] = "1"
        try:
            for event in (
                h11.Response(status_code=status, headers=list(headers.items())),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer had begun: nothing can be said any more
            self.transport.close()
            return
        # To close at once, with data unread, would reset the connection before the answer
        # has arrived.
        self._ended = True
        if self.cycle is not None:  # what it would answer cannot be sent any more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)
