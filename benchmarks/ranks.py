"""Training with one process of two threads against two processes of one thread each.

    python benchmarks/ranks.py                two minutes on two idle cores

Trainings with global batches of one size, by turns: `python` with OMP_NUM_THREADS=2, and
torchrun with two processes of one thread. Of each the seconds of the fastest epoch after the first.
The digits' network (width 8), the ResNet-18 of width 16 and the fast network, on noise: the time of
a step does not depend on what images show.
"""

import os
import statistics
import subprocess
import sys
from dataclasses import replace

import numpy as np
import torch

from goen.data import ImageSet
from goen.studies.presets import PRESETS
from goen.training import help_training, train_backbone
from goen.training.distributed import broadcast, join_processes
from timing import header

CASES = {"digits": ("digits", 640), "width 16": ("short", 1_280), "fast": ("fast", 1_024)}
EPOCHS, ROUNDS = 3, 3


def train(case: str) -> None:
    """Train and print the seconds of the fastest epoch after the first."""
    preset, count = CASES[case]
    settings = PRESETS[preset]
    rng = np.random.default_rng(0)
    classes = tuple(map(str, range(settings.network.num_classes)))
    pixels = rng.integers(0, 256, (count, 3, 32, 32), np.uint8)
    images = ImageSet("noise", pixels, np.arange(count) % len(classes), classes)
    training = replace(settings.training, epochs=EPOCHS, sizes=(), learning_rate=0.01)
    with join_processes() as rank:
        if rank:
            help_training(images)
            return
        few = images.take(range(64))
        _, rows = train_backbone(settings.network, training, images, few)
        broadcast(None)
        print(min(row.seconds for row in rows[1:]))


def seconds(case: str, processes: int) -> float:
    """Of an epoch by so many processes, on two cores."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [sys.executable, *(launcher if processes > 1 else []), __file__, case],
        env={**os.environ, "OMP_NUM_THREADS": str(2 // processes)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    torch.set_num_threads(1)
    header()
    for case in CASES:
        pairs = [(seconds(case, 1), seconds(case, 2)) for _ in range(ROUNDS)]
        ratios = [one / two for one, two in pairs]
        print(f"{case:10} two processes are {statistics.median(ratios):.2f} times as fast", end=" ")
        print("(" + ", ".join(f"{one:.1f} s / {two:.1f} s" for one, two in pairs) + ")")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1])
    else:
        main()
