"""Clients that take what others need, all at once, and what a good client then sees.

    python -m tests.serve.starving --seconds 20

starts ``goen serve`` with the bundled gate and measures the latency of one image, first quietly and
then under eight connections that send bodies of one-byte chunks without end, 600 idle connections,
and requests of 64 large JPEGs. It fails if the 99th percentile rises to ten times the quiet one, if
an image or a probe of the service's health is not answered, if the memory passes its bound, or if
the service does not end in time. The attackers and the good client are processes of their own.
"""

import argparse
import io
import multiprocessing
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from tests.serve.hostile import post, resident, serving, status_of
from tests.serve.running import SECONDS, encoded

CHUNKED, IDLE = 8, 600
FACTOR = 10  # by which the 99th percentile may rise
MEGABYTES = 1500
_PROBES = 100
_LARGE = (7000, 7000)
_HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)


def one_byte_chunks(port: int, path: bytes) -> None:
    """Bodies of one-byte chunks, again and again."""
    while True:
        with suppress(OSError), connect(port) as connection:
            connection.sendall(_HEAD % path)
            while True:
                connection.sendall(b"1\r\na\r\n" * 1000)


def idle(port: int) -> None:
    """Connections that say nothing; one that is closed is opened again after a moment."""
    open_ones: list[socket.socket] = []
    while True:
        while len(open_ones) < IDLE:
            with suppress(OSError):
                open_ones.append(connect(port))
        time.sleep(0.5)
        for connection in open_ones[:]:
            connection.setblocking(False)
            with suppress(BlockingIOError, OSError):
                if not connection.recv(1):
                    open_ones.remove(connection)
                    connection.close()


def large_images(port: int) -> None:
    """Requests of as many large images as one may hold."""
    content = io.BytesIO()
    Image.new("RGB", _LARGE, (90, 120, 60)).save(content, "JPEG", quality=30)
    part = b'--b\r\nContent-Disposition: form-data; name="f"; filename="f.jpg"\r\n\r\n%s\r\n'
    body = part % content.getvalue() * 64 + b"--b--\r\n"
    request = post(b"/score", body, b"Content-Type: multipart/form-data; boundary=b")
    while True:
        with suppress(OSError), connect(port) as connection:
            connection.sendall(request)
            while connection.recv(1 << 16):
                pass


ATTACKS: dict[str, list[tuple[Callable[..., None], tuple[object, ...]]]] = {
    "one-byte chunks": [
        (one_byte_chunks, (path,)) for path in (b"/score", b"/v2/health/live") * (CHUNKED // 2)
    ],
    "idle connections": [(idle, ())],
    "large images": [(large_images, ())],
}


class Latency(NamedTuple):
    """What a good client saw."""

    p99: float
    images: int
    refused: int
    probes: int


def good_client(port: int, seconds: float) -> Latency:
    """An image after the other, each on a connection of its own, and probes among them."""
    rng = np.random.default_rng(0)
    data = encoded(rng.integers(0, 256, (3, 32, 32), dtype=np.uint8), "PNG")
    probe = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    until, every = time.monotonic() + seconds, seconds / _PROBES
    latencies: list[float] = []
    refused = probes = sent = 0
    start = time.monotonic()
    while time.monotonic() < until:
        at = time.perf_counter()
        status = ask(port, post(b"/score", data))
        latencies.append(time.perf_counter() - at)
        refused += status != 200
        if time.monotonic() > start + every * sent and sent < _PROBES:
            sent += 1
            probes += ask(port, probe) == 200
        time.sleep(0.01)
    while sent < _PROBES:
        sent += 1
        probes += ask(port, probe) == 200
    return Latency(float(np.quantile(latencies, 0.99)), len(latencies), refused, probes)


def ask(port: int, request: bytes) -> int | None:
    """The status of the answer; none if there is none."""
    received = b""
    with suppress(OSError), connect(port) as connection:
        connection.sendall(request)
        while part := connection.recv(1 << 16):
            received += part
    return status_of(received)


@contextmanager
def attacking(port: int, names: list[str]) -> Iterator[None]:
    """Under these attacks."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=attack, args=(port, *arguments), daemon=True)
        for name in names
        for attack, arguments in ATTACKS[name]
    ]
    for process in processes:
        process.start()
    try:
        time.sleep(2)
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement")
    asked = parser.parse_args()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with serving(log) as (started, port):
            quiet = good_client(port, asked.seconds)
            print(f"quiet: {quiet.p99 * 1000:.1f} ms, {quiet.images} images", flush=True)
            for names in (*([name] for name in ATTACKS), list(ATTACKS)):
                with attacking(port, names):
                    seen = good_client(port, asked.seconds)
                    memory = resident(started.pid) / 1e6
                    if names == list(ATTACKS):
                        at = time.monotonic()
                        started.send_signal(signal.SIGTERM)
                        code = started.wait(120)
                        took = time.monotonic() - at
                what = " and ".join(names)
                print(
                    f"{what}: {seen.p99 * 1000:.1f} ms ({seen.p99 / quiet.p99:.1f}), "
                    f"{seen.images} images, {seen.refused} refused, "
                    f"{seen.probes} of {_PROBES} probes answered, {memory:.0f} MB",
                    flush=True,
                )
                if seen.p99 > FACTOR * quiet.p99:
                    failures.append(
                        f"{what}: the 99th percentile rose by {seen.p99 / quiet.p99:.1f}"
                    )
                if seen.refused or seen.probes < _PROBES or memory > MEGABYTES:
                    failures.append(f"{what}: {seen}, {memory:.0f} MB")
            print(f"ended in {took:.1f} s with code {code}")
            if code or took > 31 or "Traceback" in log.read_text():
                failures.append("the end was not clean")
        print(log.read_text()[-1500:])
    print("\n".join(failures) or "nothing unexpected")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
