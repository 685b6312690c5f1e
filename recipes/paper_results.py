"""Evaluate networks of recipes/paper_scale.py as the studies do: the paper's tables at its scale.

    OMP_NUM_THREADS=1 python recipes/paper_results.py FOLDER --seed 42 --data-dir DATA

FOLDER holds the finished trainings. Their networks become stages of ``runs/stages``, as if goen had
trained them: the last weights with budget ``full``, and those that the paper's patience rule chose
with budget ``paper``. Then ``goen ablate`` (Table 2) and ``goen bench`` (Table 1, the rows that
share the ordinary network) run on them, with every further set; what they need and is not in FOLDER
is left out. The results are kept as results/cifar10/paper-*.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from paper_scale import NETWORKS
from safetensors import safe_open
from torch import Tensor

from goen.data.protocol import protocol
from goen.io.stages import Stages
from goen.studies.networks import adopt
from goen.studies.presets import Budget, choose_preset
from goen.training import PATIENCE

EXTRA = ("tiny-imagenet", "mnist", "textures", "places", "cifar100-rest")
# What each finished training serves; Table 2 begins with the first two.
VARIANTS = {"goen": "no_center_loss", "goen-center": "default", "single-center": "single_scale"}
STANDARD = ("max_softmax", "temperature_scaling", "energy", "odin", "mahalanobis", "knn")
NEWER = ("mahalanobis_pp", "vim", "react", "fdbd", "gen", "max_logit", "goen_m_plain")
GOEN = ("goen", "goen_distance", "knn_multi_scale", "goen_m", "goen_m_flip_averaged")


def read_training(file: Path, part: str) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The weights of a finished training that begin with ``part``, and its epochs."""
    with safe_open(file, framework="pt") as stored:
        names = [name for name in stored.keys() if name.startswith(part)]  # noqa: SIM118
        weights = {name.removeprefix(part): stored.get_tensor(name) for name in names}
        return weights, json.loads(stored.metadata()["history"])


def stopped(epochs: list[dict[str, Any]], patience: int) -> list[dict[str, Any]]:
    """The epochs until training would have stopped.

    Example:
        >>> epochs = [{"validation_loss": loss} for loss in (3, 2, 4, 5, 1)]
        >>> len(stopped(epochs, 2)), len(stopped(epochs, 3))
        (4, 5)
    """
    best = 0
    for place, row in enumerate(epochs):
        if row["validation_loss"] < epochs[best]["validation_loss"]:
            best = place
        if place - best >= patience:
            return epochs[: place + 1]
    return epochs


def adopted(folder: Path, seed: int, stages: Stages, data: Path | None) -> list[str]:
    """Make stages of the finished trainings; which ones there are."""
    images = protocol("cifar10", data_dir=data, download=True)
    found = []
    for name, (representation, center_loss, smoothing) in NETWORKS.items():
        file = folder / f"{name}-{seed}.safetensors"
        if not file.is_file():
            continue
        weights, epochs = read_training(file, "network.")
        budgets: tuple[Budget, ...] = ("full",) if name == "standard" else ("full", "paper")
        preset = choose_preset("paper-bf16", images, "full", seed)
        if len(epochs) < preset.training.epochs:
            print(f"{name}: {len(epochs)} of {preset.training.epochs} epochs, not evaluated")
            continue
        found.append(name)
        for budget in budgets:
            chosen = choose_preset("paper-bf16", images, budget, seed)
            network = replace(chosen.network, representation=representation)
            training = replace(chosen.training, center_loss=center_loss, label_smoothing=smoothing)
            validation = images.calibration_id
            if budget == "paper":
                validation = replace(images, threshold_images="test").calibration_id
                weights, _ = read_training(file, "best.")
                epochs = stopped(epochs, PATIENCE)
            adopt(network, training, images.train, validation, stages, weights, epochs)
    return found


def goen(command: str, out: str, *options: str) -> None:
    """Run a study, and keep its results."""
    arguments = [command, "--data", "cifar10", "--preset", "paper-bf16", "--out", f"runs/{out}"]
    subprocess.run([sys.executable, "-m", "goen", *arguments, *options], check=True)
    subprocess.run([sys.executable, "recipes/keep.py", f"runs/{out}", out], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = adopted(asked.folder, asked.seed, Stages(Path("runs/stages")), asked.data_dir)
    shared = ["--seed", str(asked.seed), "--extra", *EXTRA]
    if asked.data_dir is not None:
        shared += ["--data-dir", str(asked.data_dir)]
    methods = [
        *(STANDARD + NEWER if "standard" in found else ()),
        *(GOEN if "goen" in found else ()),
    ]
    if methods:
        goen("bench", f"paper-bench-{asked.seed}", *shared, "--methods", *methods)
    variants = [VARIANTS[name] for name in found if name in VARIANTS]
    if "default" in variants:
        for budget in ("full", "paper"):
            name = f"paper-ablate-{budget}-{asked.seed}"
            options = ("--budget", budget, "--variants", *variants, "no_svhn")
            goen("ablate", name, *shared, *options)


if __name__ == "__main__":
    main()
