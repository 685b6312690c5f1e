"""Flip averaging for other methods: python recipes/flip_averaged.py 42 --data-dir DATA

goen-m gains from averaging an image and its horizontal flip, and so may other methods: the methods
on GOEN's network, all with flip averaging (after recipes/bench.sh of the seed).
"""

from dataclasses import replace
from pathlib import Path

import tyro
from keep import bench_and_keep

from goen.studies import BenchConfig
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
    twins = [
        replace(
            METHODS[key],
            key=f"{key}_flip_averaged",
            title=f"{METHODS[key].title}, flip-averaged",
            forward_mode="flip_averaged",
        )
        for key in TWINS
    ]
    config = BenchConfig(methods=("goen_m_flip_averaged",), seed=seed)
    bench_and_keep(f"flip-averaged-{seed}", config, twins, data_dir, runs)


if __name__ == "__main__":
    tyro.cli(main)
