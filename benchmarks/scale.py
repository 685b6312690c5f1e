"""Time and memory of extract, fit and score as images, classes and widths grow.

    python benchmarks/scale.py                  up to 300,000 rows; half an hour
    python benchmarks/scale.py --most 30000     a quick look
    python benchmarks/scale.py --only images    images alone; features: features alone

Every row of the table is measured in a process of its own with one thread. ``extract`` and ``fit``
are the processor time of all rows, ``score`` that of 10,000 rows, without imports and without the
making of the data. Processor time, because on one thread it is what a machine without other work
takes. ``memory`` is the highest resident memory above what the process had before the first row.

Features are Gaussian clouds around one centre per class. Images are those of CIFAR-10, repeated
with noise so that no two are the same, through the ResNet-18 of the gate cifar10-w16: they are
extracted, and the gate is fitted to their features. Slopes are of log(value) over log(rows, classes
or width), by least squares: 1 is linear, 0 is constant.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import goen
from gaussian import reset_peak, resident_mb
from goen.data import load_set
from goen.errors import GoenError
from goen.models.flip_averaging import FlipAveraged
from timing import header

CHUNK, BATCH, HELD_OUT, SCORED = 4096, 256, 1000, 10_000
LAYERS = ("layer2", "layer4")
Features = dict[str, NDArray[np.generic]]
COLUMNS = ("extract", "fit", "score", "memory")


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    kind: str
    rows: int
    classes: int = 100
    width: int = 512

    def make(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Images or features, with their labels."""
        rng = np.random.default_rng([rows[0], self.width])
        if self.kind == "images":
            images = load_set("cifar10", "train")
            chosen = rows % len(images)
            noise = rng.integers(-8, 9, (len(rows), *images.image_shape), dtype=np.int16)
            noisy = np.clip(images.read(chosen) + noise, 0, 255).astype(np.uint8)
            return noisy, images.labels[chosen]
        labels = rng.integers(0, self.classes, len(rows))
        centres = np.random.default_rng(0).standard_normal((self.classes, self.width), np.float32)
        spread = rng.standard_normal((len(rows), self.width), np.float32)
        return centres[labels] + spread, labels

    def features(self, start: int, rows: int) -> tuple[Features, NDArray[np.int64], float]:
        """The features of these rows, their labels, and the seconds of the extraction."""
        made = []
        seconds = 0.0
        for first in range(start, start + rows, CHUNK):
            values, labels = self.make(np.arange(first, min(first + CHUNK, start + rows)))
            started = time.process_time()
            if self.kind == "images":
                outputs = goen.extract(network(), (values, labels), batch_size=BATCH)
                kept = {name: outputs.features[name] for name in LAYERS}
                made.append(({"logits": outputs.logits, **kept}, labels))
            else:
                made.append(({"features": values}, labels))
            seconds += time.process_time() - started
        joined = {name: np.concatenate([part[name] for part, _ in made]) for name in made[0][0]}
        return joined, np.concatenate([labels for _, labels in made]), seconds


@cache
def network() -> nn.Module:
    """That of the gate cifar10-w16, without flip averaging."""
    found = goen.load("cifar10-w16").network
    return found.network if isinstance(found, FlipAveraged) else found


def measure(setting: Setting) -> dict[str, float]:
    """One row of the table, measured in this process."""
    held_out, _, _ = setting.features(10**9, HELD_OUT)  # also loads the network and its kernels
    scored, _, _ = setting.features(2 * 10**9, SCORED)
    before = resident_mb("VmRSS")
    reset_peak()
    train, labels, extracted = setting.features(0, setting.rows)
    names = [str(label) for label in range(setting.classes)]
    started = time.process_time()
    gate = goen.Gate.fit_outputs(train, labels, held_out, classes=names)
    fitted = time.process_time() - started
    memory = resident_mb("VmHWM") - before
    started = time.process_time()
    gate.predict_outputs(scored)
    score = time.process_time() - started
    return {"extract": extracted, "fit": fitted, "score": score, "memory": memory}


def in_a_process(setting: Setting) -> dict[str, float]:
    """The same in a process of its own; prints the row."""
    command = [sys.executable, __file__, "--job", json.dumps(asdict(setting))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    cells = [setting.kind, f"{setting.rows:,}", setting.classes, setting.width]
    numbers = "".join(f"{found[column]:>12.2f}" for column in COLUMNS)
    print("".join(f"{cell!s:>10}" for cell in cells) + numbers, flush=True)
    return found


def slopes(name: str, settings: list[Setting], found: dict[Setting, dict[str, float]]) -> None:
    """Print how time and memory grow with one field of the settings."""
    if len(settings) < 2:
        return
    x = np.log([getattr(setting, name) for setting in settings])
    shown = []
    for column in COLUMNS:
        y = np.log([max(found[setting][column], 1e-3) for setting in settings])
        shown.append(f"{column} {np.polyfit(x, y, 1)[0]:.2f}")
    print(f"slopes of {settings[0].kind} over {x.size} {name}: {', '.join(shown)}")


def sweeps(most: int, only: str) -> list[tuple[str, list[Setting]]]:
    """What is varied, and the settings of each sweep."""
    counts = [rows for rows in (10_000, 30_000, 100_000, 300_000) if rows <= most]
    middle = min(30_000, most)
    wanted: list[tuple[str, list[Setting]]] = []
    if only != "images":
        wanted.append(("rows", [Setting("features", rows) for rows in counts]))
        wanted.append(("classes", [Setting("features", middle, c) for c in (10, 100, 1000)]))
        widths = (128, 512, 2048)
        wanted.append(("width", [Setting("features", middle, width=w) for w in widths]))
    if only != "features":
        wanted.append(("rows", [Setting("images", rows, 10, 128) for rows in counts]))
    return wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--most", type=int, default=300_000)
    parser.add_argument("--only", choices=("all", "images", "features"), default="all")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.job:
        print(json.dumps(measure(Setting(**json.loads(args.job)))))
        return 0
    header()
    names = "".join(f"{name:>10}" for name in ("kind", "rows", "classes", "width"))
    print(names + "".join(f"{name:>12}" for name in ("extract s", "fit s", "score s", "memory MB")))
    wanted = sweeps(args.most, args.only)
    settings = dict.fromkeys(setting for _, several in wanted for setting in several)
    found = {setting: in_a_process(setting) for setting in settings}
    for name, several in wanted:
        slopes(name, several, found)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GoenError as error:
        sys.exit(f"{error}")
