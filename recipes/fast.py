"""Post-hoc methods on the network of preset fast: python recipes/fast.py 42 --data-dir DATA

One training as the preset says (with label smoothing, an ordinary representation), and every method
that needs no training of its own on its outputs. Keeps results/cifar10/fast-SEED.jsonl.
"""

from dataclasses import replace
from pathlib import Path

import tyro
from keep import bench_and_keep

from goen.studies import BenchConfig
from goen.studies.experiment import AS_PRESET
from goen.studies.methods import METHODS

# Not ODIN, whose pass costs four times that of all the others together; and not what is measured on
# the paper's multi-scale network.
POST_HOC = (
    *("max_softmax", "temperature_scaling", "energy", "max_logit", "gen"),
    *(
        "mahalanobis",
        "relative_mahalanobis",
        "mahalanobis_pp",
        "knn",
        "vim",
        "react",
        "fdbd",
        "masf",
        "mm_pp",
    ),
    *("goen_m", "goen_m_flip_averaged", "goen_m_ood"),
)


def main(
    seed: tyro.conf.Positional[int],
    data_dir: Path | None = None,
    runs: Path = Path("runs"),
) -> None:
    """Train, fit, score and keep.

    Args:
        seed: of the network.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        runs: where studies and finished work are kept.
    """
    methods = [replace(METHODS[key], network=AS_PRESET) for key in POST_HOC]
    config = BenchConfig(methods=POST_HOC, preset="fast", seed=seed)
    bench_and_keep(f"fast-{seed}", config, methods, data_dir, runs)


if __name__ == "__main__":
    tyro.cli(main)
