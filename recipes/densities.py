"""Densities other than the paper's: python recipes/densities.py 42 --data-dir DATA

A Gaussian mixture for each class and a normalising flow beside the paper's distance, Mahalanobis
and KNN, all on the feature z of GOEN's network. Keeps results/cifar10/densities-SEED.jsonl, and
prints the seconds of each fit and of the scores of the 10,000 test images. After recipes/bench.sh
of the seed; needs goen[flow].
"""

from dataclasses import replace
from pathlib import Path

import tyro
from keep import bench_and_keep

from goen.data import protocol
from goen.io.stages import Stages
from goen.studies import METHODS, BenchConfig
from goen.studies.experiment import Experiment

ON_Z = (
    *("goen_distance", "mahalanobis", "mahalanobis_pp"),
    *("knn_multi_scale", "class_mixture", "flow"),
)


def main(
    seed: tyro.conf.Positional[int],
    data_dir: Path | None = None,
    runs: Path = Path("runs"),
) -> None:
    """Fit, score, keep, and time.

    Args:
        seed: of the network.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        runs: where studies and finished work are kept.
    """
    methods = [replace(METHODS[key], network="goen") for key in ON_Z]
    config = BenchConfig(methods=ON_Z, seed=seed)
    bench_and_keep(f"densities-{seed}", config, methods, data_dir, runs)
    cifar10 = protocol("cifar10", data_dir=data_dir)
    experiment = Experiment("cpu", "full", seed, cifar10, Stages(runs / "stages"))
    for method in methods:
        fitted = experiment.fit(method)
        _, seconds = experiment.score(fitted, cifar10.test)
        print(f"{method.key:28} fit {fitted.origin.seconds:8.2f} s, scores {seconds:6.2f} s")


if __name__ == "__main__":
    tyro.cli(main)
