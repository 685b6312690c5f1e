"""Time and memory of fit and score as images, workers, classes and widths grow.

    python benchmarks/scale.py                  up to 300,000 rows; an hour
    python benchmarks/scale.py --most 30000     a quick look
    python benchmarks/scale.py --only images    images alone; features: features alone

Every row of the table is measured in processes of its own, one thread each. A worker reads its rows
in parts (``partial_fit`` or ``partial_fit_outputs``), merges them and gives them to its parent as
bytes; then the workers' parts are merged and the gate is fitted. ``fit`` is the processor time of
the slowest worker and of the merge and the fit, without imports and without the making of the data;
``score`` the processor time per 10,000 rows. Processor time, because on one thread it is what a
machine without other work takes. ``worker`` is the highest resident memory of a worker above what
it had before the first row, ``part`` the size of what it sends.

Features are Gaussian clouds around one centre per class. Images are those of CIFAR-10, repeated
with noise so that no two are the same, through the ResNet-18 of the gate cifar10-w16. Slopes are
of log(value) over log(rows, classes or width), by least squares: 1 is linear, 0 is constant.

Measured on two cores of an AMD EPYC (KVM), Python 3.11.7, torch 2.13.0+cpu: docs/scale.md has the
table and what it comes to for a billion images.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import goen
from gaussian import reset_peak, resident_mb
from goen.data import load_set
from goen.errors import GoenError
from goen.gate import Gate, PartialFit, merge, partial_fit, partial_fit_outputs, partition_rows
from goen.models.flip_averaging import FlipAveraged
from timing import header

CHUNK, BATCH, HELD_OUT, SCORED = 4096, 256, 1000, 10_000
Rows = tuple[NDArray[np.generic], NDArray[np.int64]]


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    kind: str
    rows: int
    workers: int = 1
    classes: int = 100
    width: int = 512

    def chunks(self, rows: range) -> Iterator[tuple[int, Rows]]:
        """The rows, a chunk at a time, each with the number of its first row."""
        for start in range(rows.start, rows.stop, CHUNK):
            yield start, self.make(range(start, min(start + CHUNK, rows.stop)))

    def make(self, rows: range) -> Rows:
        rng = np.random.default_rng([rows.start, self.width])
        if self.kind == "images":
            images = load_set("cifar10", "train")
            chosen = np.asarray(rows) % len(images)
            noise = rng.integers(-8, 9, (len(rows), *images.image_shape), dtype=np.int16)
            noisy = np.clip(images.read(chosen) + noise, 0, 255).astype(np.uint8)
            return noisy, images.labels[chosen]
        labels = rng.integers(0, self.classes, len(rows))
        centres = np.random.default_rng(0).standard_normal((self.classes, self.width), np.float32)
        spread = rng.standard_normal((len(rows), self.width), np.float32)
        return centres[labels] + spread, labels

    def read(self, first_row: int, rows: Rows) -> PartialFit:
        if self.kind == "images":
            layers = ("layer2", "layer4")
            return partial_fit(
                network(), rows, first_row=first_row, layers=layers, batch_size=BATCH
            )
        names = [str(label) for label in range(self.classes)]
        return partial_fit_outputs(rows[0], rows[1], first_row=first_row, classes=names)

    def finish(self, read: PartialFit) -> Gate:
        held_out, _ = self.make(range(10**9, 10**9 + HELD_OUT))
        if self.kind == "images":
            return Gate.fit(network(), read, held_out, batch_size=BATCH)
        names = [str(label) for label in range(self.classes)]
        return Gate.fit_outputs(read, None, held_out, classes=names)


@cache
def network() -> nn.Module:
    """That of the gate cifar10-w16, without flip averaging."""
    found = goen.load("cifar10-w16").network
    return found.network if isinstance(found, FlipAveraged) else found


def fit_worker(setting: Setting, rows: range, out: Path) -> dict[str, float]:
    """Read the rows, write the merged part, and what it took."""
    kept: list[PartialFit] = []
    seconds = 0.0
    setting.read(0, setting.make(range(BATCH)))  # the first call loads and chooses kernels
    before = resident_mb("VmRSS")
    reset_peak()
    for first_row, chunk in setting.chunks(rows):
        start = time.process_time()
        kept = [merge([*kept, setting.read(first_row, chunk)])]
        seconds += time.process_time() - start
    start = time.process_time()
    content = kept[0].to_bytes()
    seconds += time.process_time() - start
    peak = resident_mb("VmHWM") - before
    out.write_bytes(content)
    return {"seconds": seconds, "worker_mb": peak, "part_mb": len(content) / 2**20}


def score_worker(setting: Setting, rows: range, part: Path) -> dict[str, float]:
    """Score the rows with the gate of these parts."""
    if setting.kind == "images":
        network()
    start = time.process_time()
    gate = setting.finish(
        merge(
            PartialFit.from_bytes(file.read_bytes()) for file in sorted(part.parent.glob("*.part"))
        )
    )
    finish, seconds = time.process_time() - start, 0.0
    for _, (chunk, _) in setting.chunks(rows):
        start = time.process_time()
        if setting.kind == "images":
            gate.predict((chunk, np.zeros(len(chunk), np.int64)), batch_size=BATCH)
        else:
            gate.predict_outputs(chunk)
        seconds += time.process_time() - start
    return {"seconds": seconds, "finish": finish}


def in_workers(setting: Setting, task: str, folder: Path) -> list[dict[str, float]]:
    """What every worker reported; they run at the same time."""
    started = []
    for number, rows in enumerate(partition_rows(setting.rows, setting.workers, CHUNK)):
        job = json.dumps([asdict(setting), task, rows.start, rows.stop, f"{folder}/{number}.part"])
        command = [sys.executable, __file__, "--job", job]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    found = []
    for process in started:
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"A worker of {setting} failed.")
        found.append(json.loads(output.splitlines()[-1]))
    return found


def measure(setting: Setting) -> dict[str, float]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        fitted = in_workers(setting, "fit", Path(folder))
        scored = in_workers(replace(setting, rows=SCORED, workers=1), "score", Path(folder))
    finish = scored[0]["finish"]
    found = {
        "fit": max(row["seconds"] for row in fitted) + finish,
        "score": scored[0]["seconds"],
        "worker": max(row["worker_mb"] for row in fitted),
        "part": max(row["part_mb"] for row in fitted),
    }
    cells = [setting.kind, f"{setting.rows:,}", setting.workers, setting.classes, setting.width]
    line = "".join(f"{cell!s:>10}" for cell in cells)
    line += f"{found['fit']:>10.2f}{found['score']:>10.2f}{found['worker']:>10.0f}"
    print(line + f"{found['part']:>10.1f}", flush=True)
    return found


def slopes(name: str, settings: list[Setting], found: dict[Setting, dict[str, float]]) -> None:
    """Print how fit, score and memory grow with one field of the settings."""
    known = [setting for setting in settings if setting in found]
    if len(known) < 2:
        return
    x = np.log([getattr(setting, name) for setting in known])
    shown = []
    for column in ("fit", "score", "worker", "part"):
        y = np.log([max(found[setting][column], 1e-3) for setting in known])
        shown.append(f"{column} {np.polyfit(x, y, 1)[0]:.2f}")
    first = known[0]
    what = f"{first.kind}, {first.workers} workers, over {name} {x.size} values"
    print(f"slopes of {what}: {', '.join(shown)}")


def sweeps(most: int, only: str) -> list[tuple[str, list[Setting]]]:
    """What is varied, and the settings of each sweep."""
    counts = [rows for rows in (10_000, 30_000, 100_000, 300_000) if rows <= most]
    middle = min(30_000, most)
    wanted: list[tuple[str, list[Setting]]] = []
    if only != "images":
        for workers in (1, 2):
            wanted.append(("rows", [Setting("features", rows, workers) for rows in counts]))
        wanted.append(("classes", [Setting("features", middle, 1, c) for c in (10, 100, 1000)]))
        widths = (128, 512, 2048)
        wanted.append(("width", [Setting("features", middle, width=w) for w in widths]))
    if only != "features":
        for workers in (1, 2):
            settings = [Setting("images", n, workers, 10, 128) for n in counts]
            wanted.append(("rows", settings))
    return wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--most", type=int, default=300_000)
    parser.add_argument("--only", choices=("all", "images", "features"), default="all")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.job:
        fields, task, start, stop, path = json.loads(args.job)
        work = {"fit": fit_worker, "score": score_worker}[task]
        print(json.dumps(work(Setting(**fields), range(start, stop), Path(path))))
        return 0
    header()
    names = ("kind", "rows", "workers", "classes", "width", "fit s", "score s", "worker MB")
    print("".join(f"{name:>10}" for name in (*names, "part MB")))
    found: dict[Setting, dict[str, float]] = {}
    wanted = sweeps(args.most, args.only)
    for _, settings in wanted:
        for setting in settings:
            if setting not in found:
                found[setting] = measure(setting)
    for name, settings in wanted:
        slopes(name, settings, found)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GoenError as error:
        sys.exit(f"{error}")
