"""A server that answers what no good server would: for URLs that ``goen score`` is given."""

import gzip
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

# What no answer may be read to; the server itself ends there.
ENDLESS = 1 << 28
_PART = 1 << 16
_LINKS = b'<a href="a/">a</a><a href="b/">b</a><a href="./">.</a><a href="../../">up</a>'


class HostileServer:
    """Answers on this machine, in threads; the last part of a path says what is answered.

    Args:
        contents: of files that are answered as they are, by name.
    """

    def __init__(self, contents: dict[str, bytes]) -> None:
        handler = type("Bound", (_Handler,), {"contents": contents})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        Thread(target=self._server.serve_forever, daemon=True).start()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.dead = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"


def _endless(start: bytes, part: bytes) -> Iterator[bytes]:
    yield start
    part = part * (1 + _PART // len(part))
    for _ in range(ENDLESS // len(part)):
        yield part


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    contents: ClassVar[dict[str, bytes]]

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/").split("/")
        try:
            self._kinds.get(path[0], _Handler._file)(self, path)
        except OSError:
            self.close_connection = True

    def _answer(self, status: int, parts: Iterator[bytes] | bytes, **headers: str) -> None:
        """Without a length, if it is not among the headers and the parts are not bytes."""
        self.send_response(status)
        if isinstance(parts, bytes):
            headers = {"Content-Length": str(len(parts)), **headers}
            parts = iter([parts])
        for name, value in {"Content-Type": "text/html", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if self.command != "HEAD":
            for part in parts:
                self.wfile.write(part)

    def _file(self, path: list[str]) -> None:
        content = self.contents.get(path[-1])
        if content is None:
            self._answer(404, b"nothing")
        else:
            self._answer(200, content, Content_Type="application/octet-stream")

    def _status(self, path: list[str]) -> None:
        self._answer(int(path[1]), b"no")

    def _endless_page(self, path: list[str]) -> None:
        self._answer(200, _endless(b"<html>", b"x " * 99))

    def _endless_links(self, path: list[str]) -> None:
        self._answer(200, _endless(b"<html>", b'<a href="a/">a</a> '))

    def _endless_file(self, path: list[str]) -> None:
        start = next(iter(self.contents.values()))
        self._answer(200, _endless(start, b"\0"), Content_Type="image/png")

    def _endless_part(self, path: list[str]) -> None:
        """Says that it is short, and answers the question for a part of it without end."""
        if self.command == "HEAD":
            self._answer(200, b"", Content_Length="10000000", Accept_Ranges="bytes")
        else:
            self._answer(206, _endless(b"", b"\0"), Content_Range="bytes 0-999/10000000")

    def _deep(self, path: list[str]) -> None:
        self._answer(200, _LINKS + b'<a href="good.png">x</a>')

    def _cut(self, path: list[str]) -> None:
        content = self.contents.get(path[-1], b"x" * 99)
        self._answer(200, iter([content[: len(content) // 2]]), Content_Length=str(len(content)))

    def _round(self, path: list[str]) -> None:
        self._answer(302, b"", Location=f"/round/{len(path)}/{path[-1]}")

    def _packed(self, path: list[str]) -> None:
        """Compressed: a thousand times as large as it looks."""
        content = gzip.compress(bytes(ENDLESS >> 3), 1)
        self._answer(200, content, Content_Encoding="gzip")

    def _nonsense(self, path: list[str]) -> None:
        self.wfile.write(b"\x00\xff" * 400 + b"\r\n\r\n")
        self.close_connection = True

    def _wrong_length(self, path: list[str]) -> None:
        self._answer(200, iter([b"x" * 10]), Content_Length="-5")

    _kinds: ClassVar[dict[str, Callable[["_Handler", list[str]], None]]] = {
        "status": _status,
        "endless-page": _endless_page,
        "endless-links": _endless_links,
        "endless-file": _endless_file,
        "endless-part": _endless_part,
        "deep": _deep,
        "cut": _cut,
        "round": _round,
        "packed": _packed,
        "nonsense": _nonsense,
        "wrong-length": _wrong_length,
    }


KINDS = ("status/404", "status/500", "status/403", "status/301", *list(_Handler._kinds)[1:])
"""The beginnings of paths that are answered badly."""
