"""Flip averaging for other methods: python recipes/flip_averaged.py 42 --data-dir DATA

goen-m gains from averaging an image and its horizontal flip, and so may other methods: the methods
on GOEN's network, all with flip averaging (after recipes/bench.sh of the seed).
"""

from dataclasses import replace
from pathlib import Path

import torch
import tyro
from keep import keep
from sets import EXTRA

from goen.data import protocol
from goen.runs.stages import Stages
from goen.studies import BenchConfig, bench
from goen.studies.methods import METHODS

TWINS = ("knn_multi_scale", "goen_distance", "goen", "goen_m_ood")


def main(
    seed: tyro.conf.Positional[int],
    data_dir: Path | None = None,
    runs: Path = Path("runs"),
) -> None:
    """Fit, score and keep.

    Args:
        seed: of the network.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        runs: where studies and finished work are kept.
    """
    torch.set_num_threads(1)  # as recipes/bench.sh: the number is part of the network's key
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    twins = [
        replace(
            METHODS[key],
            key=f"{key}_flip_averaged",
            title=f"{METHODS[key].title}, flip-averaged",
            view="flip_averaged",
        )
        for key in TWINS
    ]
    out = runs / f"cifar10-flip-averaged-{seed}"
    config = BenchConfig(methods=("goen_m_flip_averaged",), seed=seed)
    for r in bench(config, p, out, Stages(runs / "stages"), own=twins):
        if r.metric in ("auroc", "accuracy"):
            print(f"{r.method:28} {r.dataset:15} {r.metric:10} {r.value:.4f}")
    keep(out, f"flip-averaged-{seed}")


if __name__ == "__main__":
    tyro.cli(main)
