"""Post-hoc methods on the network of preset fast: python recipes/fast.py 42 --data-dir DATA

One training as the preset says (with label smoothing, an ordinary representation), and every method
that needs no training of its own on its outputs. Keeps results/cifar10/fast-SEED.jsonl.
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
    torch.set_num_threads(1)  # the number is part of a training's key
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    methods = [replace(METHODS[key], network=AS_PRESET) for key in POST_HOC]
    out = runs / f"cifar10-fast-{seed}"
    config = BenchConfig(methods=POST_HOC, preset="fast", seed=seed)
    for r in bench(config, p, out, Stages(runs / "stages"), own=methods):
        if r.metric in ("auroc", "accuracy"):
            print(f"{r.method:28} {r.dataset:15} {r.metric:10} {r.value:.4f}")
    keep(out, f"fast-{seed}")


if __name__ == "__main__":
    tyro.cli(main)
