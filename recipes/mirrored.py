"""What the mirror image does for other methods: python recipes/mirrored.py 42 --data-dir DATA

goen-m is better on an image and its mirror image together. So may be everything else: here are the
methods on GOEN's network, all seen that way (after recipes/bench.sh of the seed).
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
    torch.set_num_threads(1)  # as recipes/bench.sh: the number is part of the network's name
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    twins = [
        replace(
            METHODS[key],
            key=f"{key}_mirrored",
            title=f"{METHODS[key].title}, mirrored",
            view="mirrored",
        )
        for key in TWINS
    ]
    out = runs / f"cifar10-mirrored-{seed}"
    config = BenchConfig(methods=("goen_m_mirrored",), seed=seed)
    for r in bench(config, p, out, Stages(runs / "stages"), own=twins):
        if r.metric in ("auroc", "accuracy"):
            print(f"{r.method:28} {r.dataset:15} {r.metric:10} {r.value:.4f}")
    keep(out, f"mirrored-{seed}")


if __name__ == "__main__":
    tyro.cli(main)
