"""A service on a free port of this machine, in a thread of the test."""

import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import requests
from PIL import Image

from goen.data.imageset import Pixels
from goen.gate import Gate
from goen.serve.guard import Guard
from goen.serve.server import Server, address, open_socket
from goen.serve.service import Service
from goen.serve.settings import ServeSettings
from tests.monitor.predictions import digit_gate

SECONDS = 120  # a limit for a machine under heavy load


@dataclass(frozen=True)
class Running:
    """A service that answers, and where."""

    service: Service
    app: Guard
    url: str

    def post(self, path: str, data: bytes, **headers: str) -> requests.Response:
        return requests.post(self.url + path, data, headers=headers, timeout=SECONDS)

    def get(self, path: str, **headers: str) -> requests.Response:
        return requests.get(self.url + path, headers=headers, timeout=SECONDS)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def running(
    settings: ServeSettings | None = None, gates: Mapping[str, Gate] | None = None
) -> Iterator[Running]:
    """The gate of digits, unless others are given, behind the server that ``goen serve`` runs."""
    service = Service(gates or {"digits": digit_gate()}, settings)
    with service.running(), open_socket("127.0.0.1", 0) as listening:
        server = Server(service)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield Running(service, server.app, address(listening))
        finally:
            server.should_exit = True
            thread.join(SECONDS)
    assert not thread.is_alive()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)


def png(image: Pixels) -> bytes:
    """An image ``(3, H, W)`` as a file."""
    return encoded(image, "PNG")


def encoded(image: Pixels, form: str) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).save(content, form)
    return content.getvalue()
