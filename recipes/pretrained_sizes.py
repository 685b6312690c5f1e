"""The input of a pretrained network: python recipes/pretrained_sizes.py --data-dir DATA

The accuracy of a linear probe on EfficientNet-Lite0, frozen, by the size to which CIFAR-10's images
of 32 pixels are enlarged, and by the normalisation. Writes results/pretrained/sizes.jsonl.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import tyro
from paired import read_lines
from pretrained import OUT, linear_probe
from pretrained_features import LAST, MEAN, SIZE, STD, TRAIN, VALIDATION, image_sets, pretrained
from scipy.stats import binomtest

from goen.io.provenance import hardware, versions
from goen.report.table import Cell, Row, Table

NAME = "sizes"
SIZES = (96, 128, SIZE, 224)
# Images, the first of those that recipes/pretrained.py has.
PART = {TRAIN: 2_000, VALIDATION: 1_000}
AS_TRAINED = "(pixel - 127) / 128"
IMAGENET = "ImageNet's mean and deviation"
INPUTS = {
    AS_TRAINED: (MEAN, STD),
    IMAGENET: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def tables() -> dict[str, Table]:
    """The table of sizes in docs/pretrained.md."""
    lines = [line for line in read_lines(OUT / f"{NAME}.jsonl") if "size" in line]
    rows = [
        Row(
            f"{line['size']} pixels",
            (Cell(line["accuracy"], ".1%", low=line["low"], high=line["high"]),),
            line["normalisation"],
        )
        for line in lines
    ]
    title = "Accuracy of a linear probe on the pretrained network, by its input"
    notes = (
        f"{PART[TRAIN]:,} training images of CIFAR-10, {PART[VALIDATION]:,} others to measure; in "
        "brackets the 95 % interval over these (Clopper-Pearson).",
    )
    table = Table("pretrained-sizes", title, ("accuracy (95 %)",), tuple(rows), notes)
    return {table.name: table}


def main(data_dir: Path | None = None, runs: Path = Path("runs")) -> None:
    """Pass, fit, measure and write.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        runs: where features are kept.
    """
    torch.set_num_threads(1)
    sets = {n: s for n, s in image_sets(data_dir).items() if n in PART}
    parts = {name: sets[name].take(np.arange(count)) for name, count in PART.items()}
    lines = []
    for size, normalisation in [*((s, AS_TRAINED) for s in SIZES), (SIZES[0], IMAGENET)]:
        whole = (size, normalisation) == (SIZE, AS_TRAINED)  # which is kept of all images
        frozen = pretrained(size, runs, INPUTS[normalisation])
        if not whole:
            end = "part" if normalisation == AS_TRAINED else "other"
            frozen = replace(frozen, folder=runs / f"pretrained-{size}-{end}")
        train, other = (
            frozen.features(name, sets[name] if whole else parts[name])[LAST][:count]
            for name, count in PART.items()
        )
        probe = linear_probe(train, parts[TRAIN].labels)
        label = probe(torch.from_numpy(other)).argmax(dim=1).numpy()
        right = int((label == parts[VALIDATION].labels).sum())
        accuracy = right / len(label)
        low, high = binomtest(right, len(label)).proportion_ci()
        lines.append({"size": size, "normalisation": normalisation, "accuracy": accuracy,
                      "low": low, "high": high})  # fmt: skip
        print(lines[-1], flush=True)
    made = {"versions": versions(), "hardware": hardware(), "config": {"images": PART}}
    text = "".join(json.dumps(entry) + "\n" for entry in [made, *lines])
    (OUT / f"{NAME}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
