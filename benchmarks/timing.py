"""What every benchmark shares: a header that says where it ran, and actions timed in turn."""

import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch


def header(*packages: str) -> None:
    """Print the machine and the versions a number belongs to."""
    cpus = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    versions = ", ".join(f"{p} {version(p)}" for p in ("torch", "numpy", *packages))
    print(f"{len(cpus)} × {cpus[0]}, Python {platform.python_version()}, {versions}, ", end="")
    print(f"{torch.get_num_threads()} threads")


def interleave(actions: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each action in each round, all taking turns; the first round does not count.

    In turn, so that a busy moment of the machine meets all of them.
    """
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            taken[name].append(time.perf_counter() - start)
    return {name: times[1:] for name, times in taken.items()}


def ratio(taken: dict[str, list[float]], over: str, *under: str) -> float:
    """The median over the rounds of one action's time divided by another's, or others' together."""
    below = [sum(times) for times in zip(*(taken[name] for name in under), strict=True)]
    return statistics.median(a / b for a, b in zip(taken[over], below, strict=True))


def report(name: str, value: float, goal: float) -> bool:
    """Print a ratio against its goal (at most); whether it was met."""
    met = value <= goal
    print(f"{name:<44} {value:7.3f}   goal: at most {goal:g}   {'PASS' if met else 'FAIL'}")
    return met
