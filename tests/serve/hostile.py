"""Hostile requests, seeded: broken images, bodies, tensors, headers and sockets.

    python -m tests.serve.hostile --count 100000 --seed 0

starts ``goen serve`` with the bundled gate and sends it so many hostile requests from eight
clients, and a good one after every ten. It fails if any answer is a 5xx other than 503, if a good
request is not answered rightly, or if the process dies; it prints the answers and the memory.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from goen.data.sets.embedded import noise
from goen.gate import DEFAULT_GATE
from tests.serve.running import SECONDS, encoded

GOOD_EVERY = 10
_FORMS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_WORDS = [b"\x00", b"\xff", b"\r\n", b"\r\n\r\n", b"%n%s", b"../", b"{}", b"[", b"-1", b"1e999"]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them changed, cut, doubled or moved."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(5)
        if kind == 0 and found:
            found[at % len(found)] = rng.randrange(256)
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found[at:at] = rng.choice(_WORDS)
        elif kind == 3:
            found[at:at] = found[at : at + rng.randrange(64)]
        else:
            del found[at : at + rng.randrange(64)]
    return bytes(found)


def bomb(rng: random.Random) -> bytes:
    """A PNG that claims many pixels, or holds many in few bytes."""
    width, height = rng.choice(((65_000, 65_000), (2**31 - 1, 1), (1, 2**31 - 1), (7000, 7000)))
    rows = zlib.compress(b"\0" * rng.choice((1, 10_000, 3_000_000)))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", rows))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (*chunks, (b"IEND", b""))
    )


def post(path: bytes, body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    """A whole request."""
    size = b"%d" % (len(body) if length is None else length)
    lines = [
        b"POST " + path + b" HTTP/1.1",
        b"Host: localhost",
        b"Content-Length: " + size,
        *headers,
    ]
    return b"\r\n".join([*lines, b"Connection: close", b"", body])


class Hostile:
    """Makes requests; each is bytes to send, in parts."""

    def __init__(self, images: list[bytes], gate: str) -> None:
        self.images = images
        self.infer = f"/v2/models/{gate}/infer".encode()
        self.kinds: list[Callable[[random.Random], list[bytes]]] = [
            self.image, self.image, self.image, self.multipart, self.multipart, self.bombs,
            self.tensor, self.tensor, self.deep, self.wrong_length, self.wrong_type, self.headers,
            self.raw, self.chunks, self.tiny_chunks, self.slow,
        ]  # fmt: skip

    def make(self, rng: random.Random) -> list[bytes]:
        return rng.choice(self.kinds)(rng)

    def image(self, rng: random.Random) -> list[bytes]:
        return [post(b"/score", damaged(rng.choice(self.images), rng))]

    def multipart(self, rng: random.Random) -> list[bytes]:
        part = b'--b\r\nContent-Disposition: form-data; name="f"; filename="%s"\r\n\r\n%s\r\n'
        parts = [part % (rng.choice(_WORDS), rng.choice(self.images)) for _ in range(3)]
        body = b"".join(parts) + b"--b--\r\n"
        if rng.random() < 0.8:
            body = damaged(body, rng)
        kind = rng.choice((b"b", b"b", b"b", b'"b"', b"", b"c" * 300, b"\xff"))
        return [post(b"/score", body, b"Content-Type: multipart/form-data; boundary=" + kind)]

    def bombs(self, rng: random.Random) -> list[bytes]:
        return [post(b"/score", bomb(rng))]

    def tensor(self, rng: random.Random) -> list[bytes]:
        values = bytes(rng.randrange(256) for _ in range(3 * 4 * 4))
        about = {"name": "images", "datatype": "UINT8", "shape": [1, 3, 4, 4]}
        if rng.random() < 0.5:
            body = json.dumps({"inputs": [{**about, "data": list(values)}]}).encode()
            return [post(self.infer, damaged(body, rng))]
        head = json.dumps({"inputs": [{**about, "parameters": {"binary_data_size": 48}}]}).encode()
        size = b"%d" % rng.choice((len(head), len(head), 0, 10**9, rng.randrange(200)))
        body = damaged(head + values, rng)
        return [post(self.infer, body, b"Inference-Header-Content-Length: " + size)]

    def deep(self, rng: random.Random) -> list[bytes]:
        opening = rng.choice((b"[", b'{"inputs":', b'{"a":['))
        return [post(self.infer, opening * rng.choice((50, 2000, 100_000)))]

    def wrong_length(self, rng: random.Random) -> list[bytes]:
        data = rng.choice(self.images)
        length = rng.choice((0, 1, len(data) - 1, len(data) + 1, 10**12, 10**30, -1))
        return [post(b"/score", data, length=length)]

    def wrong_type(self, rng: random.Random) -> list[bytes]:
        kind = rng.choice(
            (b"application/json", b"text/plain; charset=\xff", b"image/svg+xml", b";")
        )
        path = rng.choice((b"/score", self.infer, b"/score/none", b"/gates", b"/", b"/v2"))
        extra = rng.choice((b"Content-Encoding: gzip", b"Range: bytes=0-", b"Upgrade: websocket"))
        return [post(path, rng.choice(self.images), b"Content-Type: " + kind, extra)]

    def headers(self, rng: random.Random) -> list[bytes]:
        name = rng.choice((b"A", b"Cookie", b"X-Request-ID", b"Authorization", b"Host"))
        value = rng.choice((b"a" * rng.choice((10, 1000, 50_000)), b"\x80\xff", b"a\tb", b""))
        lines = (name + b": " + value + b"\r\n") * rng.choice((1, 1, 40, 2000))
        return [
            b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
            lines,
            b"\r\n",
        ]

    def raw(self, rng: random.Random) -> list[bytes]:
        paths = (b"/%2e%2e/%00", b"/static/../../x", b"*", b"http://y/", b"/a?" + b"b" * 999)
        whole = (
            b"GET "
            + rng.choice(paths)
            + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        return [damaged(whole, rng)]

    def chunks(self, rng: random.Random) -> list[bytes]:
        head = b"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        data = rng.choice(self.images)
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
        return [head, damaged(body, rng)]

    def tiny_chunks(self, rng: random.Random) -> list[bytes]:
        path = rng.choice((b"/score", b"/v2/health/live"))
        head = (
            b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        return [head, b"1\r\na\r\n" * rng.choice((100, 100_000)), b"0\r\n\r\n"]

    def slow(self, rng: random.Random) -> list[bytes]:
        whole = post(b"/score", rng.choice(self.images))
        cut = rng.randrange(len(whole))
        return [whole[i : i + 7] for i in range(0, min(cut, 200), 7)]


def answer_to(port: int, parts: list[bytes], rng: random.Random) -> bytes:
    """What the service sends back; empty if it sends nothing.

    A request that is not whole is given up after a moment, by closing one direction or both.
    """
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            patience = rng.choice((0.05, 0.2))
            connection.settimeout(patience)
            while True:
                try:
                    data = connection.recv(1 << 16)
                except TimeoutError:
                    if rng.random() < 0.5:
                        connection.shutdown(socket.SHUT_WR)
                        connection.settimeout(SECONDS)
                        data = connection.recv(1 << 16)
                    else:
                        break
                if not data:
                    break
                received += data
        except (ConnectionError, TimeoutError):
            pass
    return received


def status_of(answer: bytes) -> int | None:
    """The status of the first answer, if there is one."""
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(found[1]) if found else None


@dataclass
class Outcome:
    """What came back."""

    statuses: Counter[int | None] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    good: int = 0


def attack(
    port: int, gate: str, count: int, seed: int, clients: int = 8,
    progress: Callable[[int], None] = lambda sent: None,
) -> Outcome:  # fmt: skip
    """Send so many hostile requests, and good ones among them."""
    images = noise(6, 0, stream=0).read()
    images = [encoded(image, form) for image, form in zip(images, _FORMS, strict=True)]
    hostile, outcome, lock = Hostile(images, gate), Outcome(), threading.Lock()
    expected = [good_row(port, data) for data in images]
    numbers = iter(range(count))

    def client() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            rng = random.Random(f"{seed} {number}")
            status = status_of(answer_to(port, hostile.make(rng), rng))
            row = None
            if number % GOOD_EVERY == 0:
                at = rng.randrange(len(images))
                row = good_row(port, images[at])
            with lock:
                outcome.statuses[status] += 1
                if status is not None and status >= 500 and status != 503:
                    outcome.wrong.append(f"request {number} of seed {seed}: {status}")
                if row is not None:
                    outcome.good += 1
                    if not same(row, expected[at]):
                        outcome.wrong.append(f"after {number}: {row} instead of {expected[at]}")
            progress(number)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


def good_row(port: int, data: bytes) -> dict[str, object]:
    """The row of a good image; a full queue is asked again."""
    while True:
        request = post(b"/score", data)
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
            connection.sendall(request)
            received = b""
            while part := connection.recv(1 << 16):
                received += part
        if status_of(received) != 503:
            break
        time.sleep(0.2)
    row: dict[str, object] = json.loads(received.partition(b"\r\n\r\n")[2])
    return row


def same(row: dict[str, object], expected: dict[str, object]) -> bool:
    """Equal decisions, and scores to the rounding of batches of another size."""
    a, b = row.get("score"), expected["score"]
    near = isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-4 * max(1, abs(b))
    return near and all(row[name] == expected[name] for name in ("label", "is_ood", "error"))


@contextmanager
def serving(log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """``goen serve`` with the bundled gate in a process of its own, and its port."""
    command = [sys.executable, "-m", "goen", "serve", "--port", "0", "--quiet"]
    with log.open("w") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while not (found := re.search(r"ready: http://127.0.0.1:(\d+)", log.read_text())):
            time.sleep(0.2)
        yield started, int(found[1])
    finally:
        started.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with serving(log) as (started, port):
            memory = {0: resident(started.pid)}

            def progress(sent: int) -> None:
                if sent in (1000, asked.count // 10) or sent % 10_000 == 0:
                    memory[sent] = resident(started.pid)

            start = time.monotonic()
            outcome = attack(port, DEFAULT_GATE, asked.count, asked.seed, progress=progress)
            seconds = time.monotonic() - start
            memory[asked.count] = resident(started.pid)
            started.send_signal(signal.SIGTERM)
            code = started.wait(60)
        print(f"{asked.count:,} hostile and {outcome.good:,} good requests in {seconds:.0f} s")
        print("answers:", dict(outcome.statuses.most_common()))
        print("resident MB:", {n: round(size / 1e6) for n, size in sorted(memory.items())})
        print("\n".join(outcome.wrong[:20]))
        print(f"exit code {code}; the log has {len(log.read_text()):,} characters")
        print(log.read_text()[-2000:])
    return int(bool(outcome.wrong) or code != 0)


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
