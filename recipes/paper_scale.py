"""Train one network of the paper's scale: ResNet-18 of width 64, forty epochs, in bfloat16.

Nine hours of one core on a processor with instructions for bfloat16 (AMD EPYC, torch 2.13.0, one
thread: 800 s an epoch). Interrupted, it continues from the last finished epoch:

    nohup nice -n 19 python recipes/paper_scale.py goen --seed 42 --out FOLDER --data-dir DATA &

``FOLDER/NAME-SEED.safetensors`` holds the weights after the last epoch (``network.``) and those
that early stopping with a patience of ten epochs would have kept (``best.``), so that one training
serves both budgets; ``FOLDER/NAME-SEED.jsonl`` has a line per epoch.
"""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import torch

from goen.data.protocol import SPLIT_SEED
from goen.data.sets.sources import load_set
from goen.studies.presets import PRESETS
from goen.training import EpochRow, train_backbone

CENTER_LOSS = 0.01
# representation, centre loss, label smoothing: the baselines have no smoothing.
NETWORKS = {
    "goen": ("multi_scale", 0.0, 0.1),
    "goen-center": ("multi_scale", CENTER_LOSS, 0.1),
    "standard": ("plain", 0.0, 0.0),
    "single-center": ("single_scale", CENTER_LOSS, 0.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    representation, center_loss, smoothing = NETWORKS[args.network]
    preset = PRESETS["paper-bf16"]
    network = replace(preset.network, representation=representation)
    training = replace(
        preset.training, seed=args.seed, center_loss=center_loss, label_smoothing=smoothing
    )
    everything = load_set("cifar10", "train", data_dir=args.data_dir, download=True)
    parts = everything.split({"train": 45_000, "validation": 5_000}, SPLIT_SEED)
    args.out.mkdir(parents=True, exist_ok=True)
    stem = f"{args.network}-{args.seed}"

    def note(row: EpochRow) -> None:
        with (args.out / f"{stem}.jsonl").open("a") as log:
            log.write(json.dumps(asdict(row)) + "\n")

    train_backbone(
        network,
        training,
        parts["train"],
        parts["validation"],
        checkpoint=args.out / f"{stem}.safetensors",
        on_epoch=note,
    )


if __name__ == "__main__":
    main()
