"""Mahalanobis against KNN on random features: python recipes/random_features.py --data-dir DATA

The features are z of networks of preset short that were not trained: the weights that a training
with this seed would begin with. The moments of batch norms are either as they begin (mean 0,
variance 1) or those of the training images, without a step of training. The distance of GOEN
without its head and KNN are fitted on the same 45,000 training images, and score the same test
images. Writes results/cifar10/random-features.jsonl: versions and hardware, then a line per method,
seed, moments and set.
"""

import json
from itertools import product
from pathlib import Path
from statistics import fmean

import torch
import tyro
from sets import PAPER_SETS, UNTOUCHED
from torch import nn

from goen.data import ImageSet, Protocol, protocol
from goen.detectors import KNN, Goen
from goen.extraction import extract
from goen.io.provenance import hardware, versions
from goen.metrics import ood_metrics
from goen.models import Backbone, new_network
from goen.models.seeding import seeded
from goen.outputs import Outputs
from goen.studies.methods import labels_of
from goen.studies.presets import choose_preset

OUT = Path(__file__).parents[1] / "results" / "cifar10" / "random-features.jsonl"
MOMENTS = ("initial", "of training images")
SETS = (*PAPER_SETS, *UNTOUCHED)
# Images from which the moments of batch norms are computed, in one batch.
MEASURED = 2_000


def untrained(p: Protocol, seed: int, moments: str) -> Backbone:
    """The network as a training with this seed would begin."""
    with seeded(seed):
        network = new_network(choose_preset("short", p, "full", seed).network)
    if moments == "of training images":
        norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = None  # a mean over batches, of which there is one
        with torch.no_grad():
            network.train()(torch.from_numpy(p.train.read(slice(MEASURED))))
    return network.eval()


def features(network: Backbone, images: ImageSet) -> Outputs:
    """The logits and z; no other feature is kept."""
    found = extract(network, images)
    return Outputs(found.logits, {"z": found.feature("z")})


def lines_of(p: Protocol, seed: int, moments: str) -> list[dict[str, object]]:
    """The AUROC of both methods on every set."""
    network = untrained(p, seed, moments)
    train, labels = features(network, p.train), labels_of(p.train.labels)
    methods = {"goen_distance": Goen().fit(train, labels), "knn": KNN().fit(train, labels)}
    test = features(network, p.test)
    id_scores = {name: method.score(test).numpy() for name, method in methods.items()}
    lines: list[dict[str, object]] = []
    for dataset in SETS:
        outputs = features(network, p.evaluation[dataset].images)
        for name, method in methods.items():
            m = ood_metrics(id_scores[name], method.score(outputs).numpy())
            lines.append(
                {
                    "method": name,
                    "seed": seed,
                    "moments": moments,
                    "dataset": dataset,
                    "metric": "auroc",
                    "value": m.auroc,
                    "low": m.auroc_low,
                    "high": m.auroc_high,
                }
            )
    return lines


def main(seeds: tuple[int, ...] = (42, 123, 2024), data_dir: Path | None = None) -> None:
    """Measure, print the means, and write the lines.

    Args:
        seeds: of the networks.
        data_dir: a folder that holds image sets (else GOEN_DATA).
    """
    torch.set_num_threads(1)
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=UNTOUCHED)
    if p.missing:
        raise SystemExit(f"This needs every set; missing: {', '.join(p.missing)}.")
    lines: list[dict[str, object]] = [{"versions": versions(), "hardware": hardware()}]
    for moments, seed in product(MOMENTS, seeds):
        found = lines_of(p, seed, moments)
        for method in ("goen_distance", "knn"):
            value = {
                str(r["dataset"]): float(str(r["value"])) for r in found if r["method"] == method
            }
            three, four = (fmean(value[n] for n in sets) for sets in (PAPER_SETS, UNTOUCHED))
            print(f"{moments:18} seed {seed:<4} {method:13} {three:.4f} {four:.4f}", flush=True)
        lines += found
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
