"""What a service costs over the bare gate: throughput, latency and memory, on this machine.

    python benchmarks/serve.py                   ten minutes on an idle machine
    python benchmarks/serve.py --requests 2000   without the long run for the memory
    python benchmarks/serve.py --litserve PYTHON ... and LitServe in turn with it

The gate cifar10-w16 on one thread, behind `goen serve` in a process of its own, and JPEGs of
200×150 pixels. Clients are threads of another process. The gate has the same engine in the service
and outside, onnxruntime where it is installed. Ratios of one run:

- engine: images/s of `Gate.predict` in batches of 64 in that engine against torch.

- throughput: images/s of 64 clients, one picture per request, against `Gate.predict` of full
  batches of 64 on the same pictures, decoded beforehand and decoded in the measured time. Goal: at
  least 0.85 of the latter.
- latency: the median of one client against one decode and one `predict`. Goal: at most 1.3.
- tail: the 99th percentile against the median at 80 % of the measured throughput.
- memory: after all requests against after 1,000. Goal: at most 1.05.
- LitServe with the same gate (`serve_by_litserve.py`; PYTHON is that of an environment with
  litserve and goen): images/s of 64 clients and memory of all its processes, shared pages counted
  once, against the service's. Goal: faster and smaller.

What was measured is in docs/serve.md.
"""

import argparse
import io
import json
import os
import queue
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import goen
from goen.data import load_set
from goen.gate import Gate
from timing import header

CLIENTS, BATCH, ROUNDS = 64, 64, 5


def jpegs(count: int) -> list[bytes]:
    """Photographs that ship with scikit-learn, enlarged."""
    images = load_set("photographs").read(range(count))
    found = []
    for image in images:
        picture = Image.fromarray(image.transpose(1, 2, 0)).resize((200, 150))
        content = io.BytesIO()
        picture.save(content, "JPEG", quality=85)
        found.append(content.getvalue())
    return found


@dataclass(frozen=True)
class Running:
    """A service: its port, its process id, where pictures go and how they are sent."""

    port: int
    pid: int
    path: str = "/score"
    form: bool = False


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one thread, ended by SIGTERM."""
    with log.open("w") as output:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        with suppress(ProcessLookupError):  # LitServe leaves processes behind
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def goen_service() -> Iterator[Running]:
    """`goen serve`."""
    command = [sys.executable, "-m", "goen", "serve", "cifar10-w16", "--port", "0", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with started(command, log) as process:
            while not (found := re.search(r"ready: http://127.0.0.1:(\d+).*", log.read_text())):
                time.sleep(0.2)
            print(found[0])
            yield Running(int(found[1]), process.pid)


@contextmanager
def litserve_service(python: str | None) -> Iterator[Running | None]:
    """LitServe with the same gate; nothing if no Python was given."""
    if python is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("serve_by_litserve.py")
    command = [python, str(script), str(port)]
    with (
        tempfile.TemporaryDirectory() as folder,
        started(command, Path(folder, "log")) as process,
    ):
        running = Running(port, process.pid, "/predict", form=True)
        for _ in range(300):
            with suppress(OSError, RuntimeError, ValueError):
                Client(running).score(jpegs(1)[0])
                break
            time.sleep(1)
        yield running


class Client:
    """One connection, kept open."""

    def __init__(self, service: Running) -> None:
        self.service = service
        self.connection = HTTPConnection("127.0.0.1", service.port, timeout=120)

    def score(self, data: bytes) -> float:
        """Seconds until the answer, which must be a row."""
        headers = {}
        if self.service.form:
            headers = {"Content-Type": "multipart/form-data; boundary=edge"}
            head = b'--edge\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\n'
            data = head + data + b"\r\n--edge--\r\n"
        start = time.perf_counter()
        self.connection.request("POST", self.service.path, data, headers)
        answer = self.connection.getresponse()
        row = json.loads(answer.read())
        taken = time.perf_counter() - start
        if answer.status != 200 or "p_value" not in row:
            raise RuntimeError(f"{answer.status}: {row}")
        return taken


def throughput(service: Running, pictures: list[bytes], requests: int) -> tuple[float, list[float]]:
    """Images per second of many clients, and the seconds of each request."""
    clients = [Client(service) for _ in range(CLIENTS)]
    each = requests // CLIENTS

    def work(number: int) -> list[float]:
        chosen = (pictures[(number + n) % len(pictures)] for n in range(each))
        return [clients[number].score(data) for data in chosen]

    with ThreadPoolExecutor(CLIENTS) as pool:
        start = time.perf_counter()
        taken = [seconds for part in pool.map(work, range(CLIENTS)) for seconds in part]
        return len(taken) / (time.perf_counter() - start), taken


def at_rate(service: Running, pictures: list[bytes], rate: float, requests: int) -> list[float]:
    """Seconds from the moment a request was due to its answer, at a fixed rate of requests."""
    due: queue.Queue[float | None] = queue.Queue()
    taken: list[float] = []

    def work() -> None:
        client = Client(service)
        while (moment := due.get()) is not None:
            client.score(pictures[int(moment * 1000) % len(pictures)])
            taken.append(time.perf_counter() - moment)

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    for number in range(requests):
        moment = start + number / rate
        time.sleep(max(0.0, moment - time.perf_counter()))
        due.put(moment)
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    return taken


def bare(gate: Gate, pictures: list[bytes], count: int, *, decoding: bool) -> float:
    """Images per second of `Gate.predict` in full batches."""
    chosen = [pictures[n % len(pictures)] for n in range(count)]
    ready = [goen.read_image(data, gate.image_size) for data in pictures]
    start = time.perf_counter()
    for first in range(0, count, BATCH):
        part = range(first, min(first + BATCH, count))
        if decoding:
            images = [goen.read_image(chosen[n], gate.image_size) for n in part]
        else:
            images = [ready[n % len(ready)] for n in part]
        gate.predict(np.stack(images))
    return count / (time.perf_counter() - start)


def memory_of(pid: int) -> float:
    """Megabytes of a process and its children, shared pages counted once."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    own = int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)[1]) / 1e3  # type: ignore[index]
    return own + sum(memory_of(int(child)) for child in children)


def line(name: str, value: float, goal: str, met: bool) -> None:
    print(f"{name:<56} {value:8.3f}   goal: {goal:<14} {'PASS' if met else 'FAIL'}")


def ratio(over: list[float], under: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def compare_litserve(service: Running, other: Running, pictures: list[bytes]) -> None:
    """Throughput and memory of both, in turn."""
    ours, theirs = [], []
    throughput(other, pictures, 1024)  # warm
    for _ in range(ROUNDS):
        ours.append(throughput(service, pictures, 1024)[0])
        theirs.append(throughput(other, pictures, 1024)[0])
    print(f"images/s: {statistics.median(ours):.0f}, LitServe {statistics.median(theirs):.0f}")
    value = ratio(ours, theirs)
    line("images/s of 64 clients / LitServe's", value, "above 1", value > 1)
    own, its = memory_of(service.pid), memory_of(other.pid)
    print(f"memory: {own:.0f} MB, LitServe {its:.0f} MB")
    line("memory / LitServe's", own / its, "below 1", own < its)


def measure(gate: Gate, service: Running, pictures: list[bytes]) -> float:
    """Print throughput and latency against the bare gate; images/s of the service."""
    rates, of_torch, of_decoded, of_files, alone, single = [], [], [], [], [], []
    client, torch_gate = Client(service), gate.with_engine("torch")
    for _ in range(ROUNDS):  # in turn: a busy moment of the machine meets all of them
        of_files.append(bare(gate, pictures, 512, decoding=True))
        rates.append(throughput(service, pictures, 1024)[0])
        of_decoded.append(bare(gate, pictures, 512, decoding=False))
        of_torch.append(bare(torch_gate, pictures, 512, decoding=False))
        alone.append(statistics.median(client.score(data) for data in pictures[:60]))
        start = time.perf_counter()
        for data in pictures[:60]:
            gate.predict(goen.read_image(data, gate.image_size))
        single.append((time.perf_counter() - start) / 60)
    rate = statistics.median(rates)
    print(f"images/s: service {rate:.0f}, predict {statistics.median(of_decoded):.0f} ", end="")
    print(f"(torch: {statistics.median(of_torch):.0f}), ", end="")
    print(f"decode and predict {statistics.median(of_files):.0f}")
    print(f"one client {1e3 * statistics.median(alone):.1f} ms, ", end="")
    print(f"decode and predict {1e3 * statistics.median(single):.1f} ms")
    print(f"{'predict / predict in torch':<56} {ratio(of_decoded, of_torch):8.3f}")
    print(f"{'service / predict of decoded images':<56} {ratio(rates, of_decoded):8.3f}")
    value = ratio(rates, of_files)
    line("service / decode and predict", value, "at least 0.85", value >= 0.85)
    value = ratio(alone, single)
    line("latency of one client / decode and predict", value, "at most 1.3", value <= 1.3)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=100_000, help="of the run for the memory")
    parser.add_argument("--litserve", metavar="PYTHON", help="of an environment with LitServe")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    header("onnxruntime", "starlette", "uvicorn", "pillow")
    gate, pictures = goen.load("cifar10-w16").with_engine("auto"), jpegs(256)
    with goen_service() as service:
        throughput(service, pictures, 1024)  # warm
        memory = memory_of(service.pid)
        rate = measure(gate, service, pictures)
        with litserve_service(asked.litserve) as other:
            if other is not None:
                compare_litserve(service, other, pictures)
        taken = at_rate(service, pictures, 0.8 * rate, 2000)
        value = float(np.quantile(taken, 0.99) / np.median(taken))
        print(f"{'99th percentile / median at 80 % load':<56} {value:8.3f}")
        throughput(service, pictures, asked.requests)
        value = memory_of(service.pid) / memory
        name = f"memory after {asked.requests:,} requests / after 1,024"
        line(name, value, "at most 1.05", value <= 1.05)
        print(f"memory: {memory:.0f} MB, then {memory_of(service.pid):.0f} MB")


if __name__ == "__main__":
    main()
