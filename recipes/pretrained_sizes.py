"""The size of images for a pretrained network: python recipes/pretrained_sizes.py --data-dir DATA

The gate on the last layer of recipes/pretrained.py on fewer images, which are enlarged from 32
pixels to several sizes. Writes results/pretrained/sizes.jsonl and sizes.json.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import tyro
from pretrained import OUT, PROBE, Measured, cifar10, keep, over_sets
from pretrained_features import SIZE, TEST, TRAIN, VALIDATION, image_sets, pretrained

from goen.data import ImageSet
from goen.report.table import Row, Table
from goen.runs.results import Result, read_results
from goen.studies import SEEDS

SIZES = (96, 128, SIZE, 224)
# Images of each set, the first of those that recipes/pretrained.py has.
PART = {TRAIN: 4_000, VALIDATION: 2_000, TEST: 2_000}
PART_OOD = 1_000
METHODS = ("probe", "probe_last")
NEAR = ("cifar100-all", "tiny-imagenet")
FAR = ("svhn", "textures", "places")


def measured(sets: Mapping[str, ImageSet], size: int, runs: Path) -> Measured:
    """The first images of each set, enlarged to this size."""
    parts = {
        name: images.take(np.arange(min(len(images), PART.get(name, PART_OOD))))
        for name, images in sets.items()
        if name not in ("mnist", "noise")
    }
    frozen = pretrained(size, runs)
    if size != SIZE:  # that size is kept whole
        frozen = replace(frozen, folder=runs / f"pretrained-{size}-part")
    lite0 = {}
    for name, part in parts.items():
        whole = frozen.features(name, sets[name] if size == SIZE else part)
        lite0[name] = {layer: rows[: len(part)] for layer, rows in whole.items()}
    return Measured(parts, lite0, {}, {"lite0": f"backbone-efficientnet-lite0-{size}"})


def all_sizes(sets: Mapping[str, ImageSet], runs: Path) -> Iterator[Result]:
    """The numbers of every size and seed; the size is part of the method's name."""
    for size in SIZES:
        found = measured(sets, size, runs)
        for seed in SEEDS:
            for r in cifar10(found, seed, METHODS):
                yield replace(r, method=f"{r.method}-{size}")


def tables() -> dict[str, Table]:
    """The table of sizes in docs/pretrained.md."""
    results = read_results(OUT / "sizes.jsonl")
    columns = {"near": NEAR, "far": FAR} | {name: (name,) for name in (*NEAR, *FAR)}
    titles = {"probe": "two layers", "probe_last": "the last layer alone"}
    rows = [
        Row(
            f"{size} pixels",
            (
                over_sets(results, f"{method}-{size}", (TEST,), "accuracy"),
                *(
                    over_sets(results, f"{method}-{size}", n, "auroc", interval=False)
                    for n in columns.values()
                ),
            ),
            titles[method],
        )
        for method in METHODS
        for size in SIZES
    ]
    title = "AUROC by the size to which images of 32 pixels are enlarged"
    notes = (
        f"{PART[TRAIN]:,} training images, of which a seed draws four fifths, and {PART_OOD:,} of "
        "each OOD set at most. Mean ± standard deviation over seeds.",
    )
    table = Table("pretrained-sizes", title, ("accuracy", *columns), tuple(rows), notes)
    return {table.name: table}


def main(data_dir: Path | None = None, runs: Path = Path("runs")) -> None:
    """Pass, fit, measure and write.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        runs: where features are kept.
    """
    torch.set_num_threads(1)
    results = []
    for r in all_sizes(image_sets(data_dir), runs):
        results.append(r)
        if r.metric in ("auroc", "accuracy"):
            print(f"{r.method:15} {r.seed:5} {r.dataset:15} {r.metric} {r.value:.4f}", flush=True)
    keep("sizes", results, {"sizes": SIZES, "seeds": SEEDS, "method": PROBE})


if __name__ == "__main__":
    tyro.cli(main)
