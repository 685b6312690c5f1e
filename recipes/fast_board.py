"""Every detector on the two networks of the bundled gate, seeds 42 and 123 of preset fast.

    python recipes/fast_board.py --data-dir DATA

Their weights are in half precision, as the gate has them. Detectors with a gradient pass (ODIN,
AdaSCALE) are left out: they cost four times all the others together.
Keeps results/cifar10/fast-board-SEED.jsonl. Half an hour of one core for each network.
"""

from pathlib import Path

import torch
import tyro
from keep import keep
from sets import EXTRA

import goen
from goen.detectors import DETECTORS, make_detector
from goen.models.ensemble import LogitEnsemble
from goen.models.flip_averaging import FlipAveraged

SEEDS = (42, 123)
LEFT_OUT = ("uncertainty", "flow")


def main(data_dir: Path | None = None, runs: Path = Path("runs")) -> None:
    """Fit, score and keep.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        runs: where studies and finished work are kept.
    """
    torch.set_num_threads(1)
    protocol = goen.data.protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    averaged = goen.load("cifar10").network
    assert isinstance(averaged, FlipAveraged)
    assert isinstance(averaged.network, LogitEnsemble)
    plain = [n for n in DETECTORS if n not in LEFT_OUT and not make_detector(n).needs_gradient]
    for seed, network in zip(SEEDS, averaged.network.members, strict=True):
        out = runs / f"cifar10-fast-board-{seed}"
        print(goen.bench(network, protocol, plain, out=out))
        keep(out, f"fast-board-{seed}")


if __name__ == "__main__":
    tyro.cli(main)
