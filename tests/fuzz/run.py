"""Runs cases: in this process, or in others with limits on time and memory."""

import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.case import Fuzzer, Result, generator

# Of a case whose process does not answer. Far more than processor time: others may be at work.
_WALL_SECONDS = 300.0
_ADDRESS_SPACE = 6 << 30
_ROOT = Path(__file__).parents[2]


def run_case(fuzzer: Fuzzer, seed: int, number: int) -> Result:
    """One case, in this process."""
    _forget_peak()
    before, started = _peak(), time.process_time()
    outcome = failure = ""
    try:
        outcome = fuzzer.run(generator(fuzzer.name, seed, number))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error)[:300].encode("utf-8", "backslashreplace").decode()
        failure = f"{type(error).__name__}: {text} ({Path(last.filename).name}:{last.lineno})"
    seconds, grown = time.process_time() - started, _peak() - before
    if not failure and seconds > fuzzer.seconds:
        failure = f"took {seconds:.1f} s"
    if not failure and grown > fuzzer.megabytes:
        failure = f"took {grown:.0f} MB"
    if failure:
        outcome = ""
    what = fuzzer.what.encode("utf-8", "backslashreplace").decode()
    return Result(number, outcome, failure, what, seconds, grown)


def _forget_peak() -> None:
    """Let the kernel measure the highest memory from here on; Linux only."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak() -> float:
    """The highest memory of this process, in megabytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def work(fuzzer: Fuzzer, seed: int, numbers: range) -> None:
    """Run cases and print a line before and after each: the other end of ``run_cases``."""
    sizes = Path("/proc/self/statm")
    if sizes.is_file():  # elsewhere than on Linux memory is measured, but not limited
        used = int(sizes.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_SPACE, used + _ADDRESS_SPACE))
    for number in numbers:
        print(number, flush=True)
        print(json.dumps(asdict(run_case(fuzzer, seed, number))), flush=True)


def run_cases(name: str, seed: int, numbers: range) -> Iterator[Result]:
    """The cases of these numbers, in a process of their own; one that dies or hangs is replaced."""
    while numbers:
        with tempfile.TemporaryDirectory(prefix="goen-fuzz-") as folder:
            options = {"worker": folder, "kind": name, "seed": seed}
            options |= {"first": numbers.start, "count": len(numbers)}
            command = [sys.executable, "-m", "tests.fuzz"]
            command += [f"--{option}={value}" for option, value in options.items()]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GOEN_CACHE": folder}
            # libtiff writes to standard error, whatever Pillow asks of it.
            with (
                Path(folder, "stderr").open("w") as log,
                subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=_ROOT,
                    env=environment,
                ) as process,
            ):
                try:
                    numbers = yield from collect_results(process, numbers, Path(folder, "stderr"))
                finally:
                    process.kill()


def collect_results(
    process: subprocess.Popen[str], numbers: range, log: Path, wall: float = _WALL_SECONDS
) -> Generator[Result, None, range]:
    """The results of a process; at its end the numbers of the cases that are left."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    current: int | None = None
    failure = ""
    while not failure:
        try:
            line = lines.get(timeout=wall)
        except queue.Empty:
            failure = f"no answer in {wall:g} s"
            continue
        if line.startswith("{"):
            yield Result(**json.loads(line))
        elif line:
            current = int(line)
        elif process.wait() == 0:
            return numbers[:0]
        else:
            failure = f"the process died with code {process.returncode}"
    if current is None:
        raise RuntimeError(f"the fuzzer could not start: {failure}\n{log.read_text()[-2000:]}")
    yield Result(current, "", failure, "", 0.0, 0.0)
    return numbers[current + 1 - numbers.start :]
