"""Scoring with every method against the pass of the network that it needs.

    python benchmarks/methods.py

A network of width 16 reads 41,000 images of 32×32; 45,000 rows are there to fit on. With its
outputs in memory, every method that needs no gradient scores all 41,000. Goal: the scoring takes at
most 15 % of the passes that gave the outputs (the plain network's and the multi-scale network's).
"""

import argparse
import sys
import time

import numpy as np
import torch

from goen.data import ImageSet
from goen.detectors.calibration_head import HeadConfig
from goen.extraction import extract
from goen.models import NetworkConfig, ResNet18
from goen.outputs import Outputs
from goen.studies import METHODS, FitData
from goen.studies.methods import Labelled
from timing import header, report

CLASSES, FIT, SCORED = 10, 45_000, 41_000


def images(count: int, seed: int) -> ImageSet:
    """Coloured noise, smooth enough that features differ."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)
    pixels = small.repeat(4, axis=2).repeat(4, axis=3)
    names = tuple(map(str, range(CLASSES)))
    return ImageSet(f"noise {seed}", pixels, rng.integers(0, CLASSES, count), names)


def rows_like(outputs: Outputs, count: int, network: ResNet18) -> Outputs:
    """As many outputs as wanted, of features drawn around the given ones."""
    generator = torch.Generator().manual_seed(0)
    picked = torch.randint(0, len(outputs), (count,), generator=generator)
    features = {
        name: torch.relu(f[picked] + 0.1 * f.std() * torch.randn(count, f.shape[1]))
        for name, f in outputs.features.items()
    }
    with torch.inference_mode():
        return Outputs(network.classifier(features["z"]), features)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    header()
    torch.manual_seed(0)
    scored = images(SCORED, 1)
    spent = {"passes": 0.0, "scores": 0.0}
    shares = []
    for network_name, representation in (("standard", "plain"), ("goen", "multi_scale")):
        network = ResNet18(NetworkConfig(width=16, representation=representation)).eval()
        mine = [m for m in METHODS.values() if m.network == network_name]
        methods = [m for m in mine if isinstance(m.forward_mode, str)]  # one pass serves them
        extract(network, scored.take(range(2000)))  # warm
        started = time.perf_counter()
        outputs = extract(network, scored)
        passed = time.perf_counter() - started
        spent["passes"] += passed
        fit_on = rows_like(outputs, FIT, network)
        held, ood = rows_like(outputs, 3000, network), outputs[:2000]
        labels = torch.randint(0, CLASSES, (FIT,))
        sets = {
            "train": Labelled(fit_on, labels),
            "calibration": Labelled(held, labels[:3000]),
            "ood:noise": Labelled(ood, labels[:2000]),
        }
        total = 0.0
        for method in methods:
            fitted = method.fit(FitData(network, HeadConfig(epochs=2), sets))
            times = []
            for _ in range(repeats):
                started = time.perf_counter()
                fitted.score(outputs)
                times.append(time.perf_counter() - started)
            print(f"  {method.title:<24} {min(times):7.3f} s")
            total += sorted(times)[len(times) // 2]
        spent["scores"] += total
        shares.append(f"{network_name}: pass {passed:.1f} s, scores {total:.1f} s")
    print("; ".join(shares))
    return 0 if report("all scores / passes", spent["scores"] / spent["passes"], 0.15) else 1


if __name__ == "__main__":
    sys.exit(main())
