"""How a feature map should be pooled: layer by layer, in several networks.

    python recipes/poolings.py cifar10-w16 --data-dir DATA      (a bundled gate, or a gate's folder)
    python recipes/poolings.py pretrained --data-dir DATA       (needs the extra goen[pretrained])

The cue of goen-m, the distance to a near neighbour among training images, in every layer that is
worth a look, pooled by mean, mean of absolute values, standard deviation and maximum. Compared on
the images that goen-m was selected with and no others: SVHN's calibration images, the fifty classes
of CIFAR-100 that the protocol leaves out, noise, and OOD images made from ID images; the ID side is
the calibration images. Writes results/poolings/NETWORK.jsonl, a line per layer, pooling and set.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import get_args

import torch
import tyro
from goen_m import synthetic
from torch import nn

import goen
from goen.data import ImageSet, Protocol, protocol
from goen.data.protocol import SPLIT_SEED
from goen.detectors._bank import Bank
from goen.extraction import extract
from goen.metrics import ood_metrics
from goen.models.flip_averaging import FlipAveraged
from goen.models.pooling import Pooling
from goen.models.tapping.tapped import Tapped
from goen.runs.provenance import hardware, versions
from goen.studies.methods import labels_of

OUT = Path(__file__).parents[1] / "results" / "poolings"
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
TRAIN, CALIBRATION = "train", "calibration"
# Images at most of each set; near neighbours among 5,000 are as good as among all.
MOST = {TRAIN: 6_000, CALIBRATION: 3_000}
MOST_OOD = 2_000


def networks_of(name: str) -> tuple[nn.Module, list[str], goen.Preprocess | None]:
    """The model, the layers whose output is a map, and its preprocessing."""
    if name == "pretrained":
        from pretrained_features import LAYERS, MEAN, SIZE, STD, folded, lite0

        return folded(lite0()[0]), [*LAYERS], goen.Preprocess(MEAN, STD, SIZE)
    network = goen.load(name).network
    model = network.network if isinstance(network, FlipAveraged) else network
    every = goen.layers(model, (3, 32, 32), every=True)
    return model, [info.name for info in every if len(info.shape) == 3], None


def selection_sets(p: Protocol) -> Iterator[tuple[str, ImageSet]]:
    """The training images, the ID images, and the OOD images to choose by."""
    yield TRAIN, p.train
    yield CALIBRATION, p.calibration_id
    yield "svhn*", p.calibration_ood["svhn"]
    yield "cifar100*", p.evaluation["cifar100-rest"].images
    yield "noise*", p.calibration_ood["noise"]
    yield from synthetic(p.calibration_id).items()


def main(
    network: tyro.conf.Positional[str], data_dir: Path | None = None, flip_averaging: bool = True
) -> None:
    """Measure every layer and pooling, print them, and write the lines.

    Args:
        network: a bundled gate, a gate's folder, or ``pretrained``.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        flip_averaging: average the features over each image and its mirror image.
    """
    torch.set_num_threads(1)
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=("cifar100-rest",))
    if p.missing:
        raise SystemExit(f"This needs every set; missing: {', '.join(p.missing)}.")
    model, layers, preprocess = networks_of(network)
    names = [f"{layer}:{pooling}" for layer in layers for pooling in POOLINGS]
    tapped: nn.Module = Tapped(model, names, preprocess=preprocess, example=(3, 32, 32))
    tapped = FlipAveraged(tapped) if flip_averaging else tapped
    outputs = {}
    for name, images in selection_sets(p):
        most = min(len(images), MOST.get(name, MOST_OOD))
        some = images.split({name: most}, SPLIT_SEED)[name]
        outputs[name] = extract(tapped, some)
        if name == TRAIN:
            labels = labels_of(some.labels)
    bank = Bank(names).update(outputs.pop(TRAIN), labels)
    lines = []
    for name in names:
        cues = {dataset: bank.distance(o, name).numpy() for dataset, o in outputs.items()}
        layer, _, pooling = name.rpartition(":")
        for dataset, cue in cues.items():
            if dataset != CALIBRATION:
                m = ood_metrics(cues[CALIBRATION], cue)
                about = {"layer": layer, "pooling": pooling, "dataset": dataset}
                lines.append({**about, "auroc": m.auroc, "low": m.auroc_low, "high": m.auroc_high})
    for layer in layers:
        means = (
            fmean(r["auroc"] for r in lines if (r["layer"], r["pooling"]) == (layer, pooling))
            for pooling in POOLINGS
        )
        print(
            f"{layer:30}",
            *(f"{pooling} {m:.4f}" for pooling, m in zip(POOLINGS, means, strict=True)),
        )
    OUT.mkdir(parents=True, exist_ok=True)
    about = {"network": network, "versions": versions(), "hardware": hardware()}
    text = "".join(json.dumps(line) + "\n" for line in [about, *lines])
    (OUT / f"{Path(network).name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
