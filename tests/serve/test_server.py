"""The server itself: connections that send nothing or garbage, and the end under load."""

import asyncio
import contextlib
import inspect
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from goen.cli.serve import serve_command
from goen.errors import UsageError
from goen.gate import DEFAULT_GATE, load
from goen.monitor.keeping import KeptMonitor, MonitorSettings
from goen.serve.server import open_socket
from goen.serve.service import Service, state_file
from goen.serve.settings import Limits, ServeSettings
from tests.serve.running import SECONDS, Running, running, wait_for
from tests.serve.test_app import images

CHUNKED = b"POST /score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def connect(served: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def test_a_connection_that_sends_no_headers_is_closed() -> None:
    with running(ServeSettings(limits=Limits(header_seconds=0.1))) as served:
        for sent in (b"", b"GET / HT", b"GET /gates HTTP/1.1\r\nA: b\r\n"):
            with connect(served) as connection:
                connection.sendall(sent)
                answer = read_all(connection)
            assert status(answer) == 408
            assert b"did not come in time" in answer
        with connect(served) as connection:  # headers of a second request
            head = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
            connection.sendall(head + b"\r\n")
            assert status(connection.recv(65536)) == 200
            connection.sendall(head)
            assert b" 408 " in read_all(connection)


def test_an_idle_connection_is_closed() -> None:
    limits = Limits(idle_seconds=0, header_seconds=SECONDS)
    with running(ServeSettings(limits=limits)) as served, connect(served) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(read_all(connection)) == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000,
        b"GET /" + b"a" * 100_000,
        b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\n\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
        CHUNKED + b"1\r\na\r\n" * 300,
        CHUNKED + b"1;" + b"a" * 100_000,
        CHUNKED + b"0\r\n" + b"A: b\r\n" * 20_000,
    ],
)
def test_garbage_gets_400_in_our_words(sent: bytes, served: Running) -> None:
    with connect(served) as connection:
        connection.sendall(sent)
        if not sent.endswith(b"\r\n\r\n"):
            connection.sendall(b"\r\n\r\n")
        answer = read_all(connection)
    assert status(answer) == 400
    assert b"This is not an HTTP request" in answer
    assert b"content-security-policy" in answer


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.mark.parametrize(("size", "code"), [(16_384, 200), (16_385, 400)])
def test_headers_may_have_16_kilobytes(size: int, code: int, served: Running) -> None:
    head = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\nA: "
    with connect(served) as connection:
        connection.sendall(head.ljust(size, b"a"))
        if code == 200:  # else nobody waits for their end
            connection.sendall(b"\r\n\r\n")
        assert status(read_all(connection)) == code


def test_a_broken_chunk_and_a_half_closed_socket_harm_nobody(served: Running) -> None:
    head = b"POST /score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(served) as connection:
        connection.sendall(head + b"5\r\nabcde\r\nXYZ\r\n")
        assert status(read_all(connection)) == 400
    with connect(served) as connection:
        connection.sendall(head + b"5\r\nab")
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)
    assert served.post("/score", images()[0]).status_code == 200


def test_garbage_behind_a_request_that_is_refused_is_no_error_of_ours(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(served) as connection:
        connection.sendall(head + b"XYZ\r\n")
        assert status(read_all(connection)) == 400
    assert served.get("/v2/health/live").status_code == 200  # whatever is logged was logged before
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_garbage_at_the_end_of_long_headers_is_answered_once(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """The parser refuses them with the same bytes with which they become too long."""
    with connect(served) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nA: ".ljust(16_000, b"a"))
        time.sleep(0.2)  # what comes together is parsed together
        connection.sendall(b"\r\n\0" * 1000)
        assert status(read_all(connection)) == 400
    assert served.get("/v2/health/live").status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_idle_connections_make_room() -> None:
    with running(ServeSettings(limits=Limits(connections=2))) as served:
        idle = [connect(served) for _ in range(40)]
        wait_for(lambda: served.get("/gates").status_code == 200)
        for connection in idle[:30]:  # the oldest went first
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
        for connection in idle:
            connection.close()


def test_one_address_does_not_take_all_connections() -> None:
    limits = Limits(connections=20, connections_per_address=2)
    with running(ServeSettings(limits=limits)) as served, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(served)) for _ in range(10)]
        wait_for(lambda: served.get("/gates").status_code == 200)
        for connection in idle[:8]:  # the oldest of this address went first
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
        head = b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        before = served.app.accepted
        for number in (1, 2):
            stack.enter_context(connect(served)).sendall(head)
            wait_for(lambda n=number: served.app.accepted == before + n)  # type: ignore[misc]
        assert served.get("/gates").status_code == 503
        other = socket.create_connection(("127.0.0.1", served.port), 5, ("127.0.0.9", 0))
        with stack.enter_context(other):
            other.sendall(b"GET /gates HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert status(read_all(other)) == 200


def test_health_is_answered_beyond_the_connections_at_work() -> None:
    with running(ServeSettings(limits=Limits(connections=2))) as served:
        head = b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        with connect(served) as first, connect(served) as second:
            for connection in (first, second):
                connection.sendall(head)
            wait_for(lambda: served.app.accepted == 2)
            answer = served.get("/gates")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert served.get("/v2/health/live").status_code == 200
            with contextlib.ExitStack() as stack:
                more = [stack.enter_context(connect(served)) for _ in range(33)]
                for connection in more:
                    connection.sendall(head.replace(b"/score", b"/v2/health/live"))
                wait_for(lambda: served.get("/v2/health/live").status_code == 200)
        wait_for(lambda: served.get("/gates").status_code == 200)


def test_one_byte_chunks_do_not_hold_up_others(served: Running) -> None:
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            with connect(served) as connection, contextlib.suppress(ConnectionError):
                connection.sendall(CHUNKED.replace(b"/score", b"/v2/health/live"))
                while not stop.is_set():
                    connection.sendall(b"1\r\na\r\n" * 10_000)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        seconds = []
        for _ in range(20):
            start = time.perf_counter()
            assert served.get("/v2/health/live").status_code == 200
            seconds.append(time.perf_counter() - start)
    finally:
        stop.set()
        for thread in threads:
            thread.join(SECONDS)
    assert sorted(seconds)[10] < 1  # it was seconds with a parser in Python


def test_a_slow_disk_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the state of a monitor is written, images are scored and metrics told."""
    writing, written = threading.Event(), threading.Event()

    def slowly(descriptor: int) -> None:
        writing.set()
        assert written.wait(SECONDS)

    with running(ServeSettings(state=tmp_path / "state")) as served:
        monkeypatch.setattr(sys.modules[Service.__module__], "_TICK_SECONDS", 0.01)
        monkeypatch.setattr(os, "fsync", slowly)
        data = images()[0]
        wait_for(lambda: served.post("/score", data).status_code == 200 and writing.is_set())
        try:
            for path in ("/metrics", "/monitor/digits", "/v2/health/ready"):
                assert requests.get(served.url + path, timeout=SECONDS / 4).status_code == 200
            assert served.post("/score", data).status_code == 200
            assert not written.is_set()
        finally:
            written.set()


def test_a_client_that_never_reads_does_not_keep_its_connection() -> None:
    limits = Limits(connections=1, body_seconds=0.3, header_seconds=0.3, idle_seconds=1)
    with running(ServeSettings(limits=limits)) as served, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
        deaf.connect(("127.0.0.1", served.port))
        deaf.settimeout(SECONDS)
        with contextlib.suppress(ConnectionError):
            deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 3000)
        wait_for(lambda: served.app.accepted == served.app.answered)
        assert served.get("/v2/health/live").status_code == 200


def test_an_answer_is_sent_without_delay(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head and its body are two writes: Nagle's algorithm would hold the second back."""
    delays = []
    made = HttpToolsProtocol.connection_made

    def connection_made(self: HttpToolsProtocol, transport: asyncio.Transport) -> None:
        connection = transport.get_extra_info("socket")
        delays.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        made(self, transport)

    monkeypatch.setattr(HttpToolsProtocol, "connection_made", connection_made)
    assert served.get("/v2/health/live").status_code == 200
    assert len(delays) == 1
    assert delays[0] != 0


def test_an_address_that_is_taken_is_an_error() -> None:
    with (
        open_socket("127.0.0.1", 0) as taken,
        pytest.raises(UsageError, match=r"Cannot listen on 127\.0\.0\.1, port"),
    ):
        open_socket("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match="--host"):
        open_socket("192.0.2.1", 0)
    with pytest.raises(UsageError, match="--port"):
        open_socket("127.0.0.1", 99999)


def test_the_containers_parts(served: Running) -> None:
    """It cannot be built here: its files are there, its options exist, its health check works."""
    root = Path(__file__).parents[2]
    text = (root / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#"]
    found = {name: rest for name, rest in lines if name != "COPY"}
    copied = [name for kind, rest in lines if kind == "COPY" for name in rest.split()[:-1]]
    ignored = (root / ".dockerignore").read_text().split()
    for name in copied:
        assert (root / name).exists()
        assert f"!{name}" in ignored
    command = [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]
    assert command[:2] == ["goen", "serve"]
    known = inspect.signature(serve_command).parameters
    options = {word[2:].replace("-", "_") for word in command if word.startswith("--")}
    assert options == {"host", "state"}
    assert options <= set(known)
    assert int(found["EXPOSE"]) == known["port"].default
    assert found["USER"] == "10001"
    check = json.loads(found["HEALTHCHECK"].partition("CMD")[2])
    assert check[0] == "python"
    for port, code in ((served.port, 0), (9, 1)):  # nothing listens on port 9
        script = check[2].replace(":8000/", f":{port}/")
        done = subprocess.run([sys.executable, check[1], script], capture_output=True)
        assert done.returncode == code


# -- goen serve as a process -----------------------------------------------------------------


@contextmanager
def process(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """``goen serve`` with the bundled gate; the process, its address and its log."""
    log = folder / "log"
    command = [sys.executable, "-m", "goen", "serve", "--port", "0", *options]
    with log.open("w") as output:
        started = subprocess.Popen(
            command, stdout=output, stderr=output, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:

        def address() -> str:
            assert started.poll() is None, log.read_text()
            found = re.search(r"ready: (http://\S+)", log.read_text())
            return found[1] if found else ""

        wait_for(lambda: bool(address()))
        yield started, address(), log
    finally:
        started.kill()
        started.wait(SECONDS)


class Load:
    """Clients that send images until they are told to stop, or the service has gone."""

    def __init__(self, url: str, clients: int = 4) -> None:
        self.rows: list[dict[str, object]] = []
        self.other: list[int] = []
        self._stop = threading.Event()
        self._url = url
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(clients)]
        for thread in self._threads:
            thread.start()

    def _send(self, number: int) -> None:
        files = images()
        while not self._stop.is_set():
            number += 1
            data = files[number % len(files)]
            try:
                answer = requests.post(f"{self._url}/score", data, timeout=SECONDS)
            except requests.RequestException:
                return  # not accepted, or killed
            if answer.status_code == 200:
                self.rows.append(answer.json())
            else:
                self.other.append(answer.status_code)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(SECONDS)


def test_kill_9_and_sigterm_under_load(tmp_path: Path) -> None:
    state = state_file(tmp_path / "state", DEFAULT_GATE)
    gate = load(DEFAULT_GATE)
    options = ("--state", str(state.parent))
    with process(tmp_path, *options, "--quiet") as (started, url, log):
        assert log.read_text().strip() == f"ready: {url}  ({DEFAULT_GATE}: onnxruntime)"
        assert requests.get(f"{url}/gates", timeout=SECONDS).json()["gates"][0]["engine"] == (
            "onnxruntime"
        )
        sent = Load(url)
        wait_for(state.exists)
        started.send_signal(signal.SIGKILL)
        started.wait(SECONDS)
        sent.stop()
    before = KeptMonitor(gate, MonitorSettings(), state).state.images  # it is whole
    with process(tmp_path, *options) as (started, url, log):
        sent = Load(url)
        wait_for(lambda: len(sent.rows) > 30)
        started.send_signal(signal.SIGTERM)
        assert started.wait(SECONDS) == 0
        sent.stop()
        lines = [json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{"]
    last = lines[-1]
    answered = [line for line in lines[:-1] if line.get("path") == "/score"]
    assert last["accepted"] == last["answered"] == len(lines) - 1
    # What the service answered, the clients got, and the monitor counted.
    assert {line["status"] for line in answered} == {200}
    assert len(sent.rows) == len(answered)
    assert sent.other == []
    assert KeptMonitor(gate, MonitorSettings(), state).state.images == before + len(answered)
