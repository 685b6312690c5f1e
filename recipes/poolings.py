"""How feature maps should be pooled, and which cues go together: compared in several networks.

    python recipes/poolings.py cifar10-w16 --data-dir DATA    (a bundled gate, or a gate's folder)
    python recipes/poolings.py fast-42 --data-dir DATA        (preset and seed; trained first)
    python recipes/poolings.py pretrained --data-dir DATA     (needs the extra goen[pretrained])

The cues of goen-m: the distance to a near neighbour among training images, in every scale of the
network, pooled by mean, mean of absolute values, standard deviation and maximum; entropy and energy
of the logits. Candidates are one or two of the distances with none, one or both of the others, and
three of the best distances. Compared on the images that goen-m was selected with and no others:
SVHN's calibration images, the fifty classes of CIFAR-100 that the protocol leaves out, noise, and
OOD images made from ID images; the ID side is the calibration images. A candidate is judged by the
mean of its AUROC over the first three, as goen-m was; the mean over all is printed beside it.
Writes results/poolings/NETWORK.jsonl, a line per candidate.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import get_args

import torch
import tyro
from goen_m import standardised, synthetic
from torch import Tensor, nn

import goen
from goen.data import ImageSet, Protocol, protocol
from goen.data.protocol import SPLIT_SEED
from goen.detectors._bank import ROWS, Bank
from goen.extraction import extract
from goen.features.extractor import FeatureExtractor
from goen.functional.cues import entropy
from goen.functional.logits import energy_score
from goen.functional.ranking import auroc, tally
from goen.io.provenance import hardware, versions
from goen.io.stages import Stages
from goen.models import Backbone
from goen.models.flip_averaging import FlipAveraged
from goen.models.pooling import Pooling, pool
from goen.outputs import Outputs
from goen.studies.methods import labels_of
from goen.studies.networks import train
from goen.studies.presets import choose_preset

OUT = Path(__file__).parents[1] / "results" / "poolings"
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
TRAIN, CALIBRATION = "train", "calibration"
REAL = ("svhn*", "cifar100*", "noise*")
# Images at most of each set; near neighbours among 5,000 are as good as among all.
MOST = {TRAIN: 6_000, CALIBRATION: 3_000}
MOST_OOD = 2_000
LOGIT_CUES = {"entropy": entropy, "energy": energy_score}
# So many of the best distances are tried by threes.
BEST = 8
Cues = dict[str, dict[str, Tensor]]
"""By cue and set."""


class EveryPooling(nn.Module):
    """A backbone with every scale pooled in every way: features ``SCALE:POOLING``."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Outputs:
        maps = zip(
            self.backbone.scales,
            self.backbone.maps(self.backbone._normalised(images)),
            strict=True,
        )
        features = {
            f"{scale.name}:{pooling}": pool(values, pooling)
            for scale, values in maps
            for pooling in POOLINGS
        }
        pooled = {scale.name: f"{scale.name}:{scale.pooling}" for scale in self.backbone.scales}
        hidden, _ = self.backbone._represent(
            *(features[pooled[name]] for name in self.backbone.two_scales)
        )
        return Outputs(self.backbone.classifier.predict(hidden).logits, features)


def network_of(name: str, p: Protocol, stages: Stages) -> nn.Module:
    """The network of this name, with all its features."""
    if name == "pretrained":
        from pretrained_features import LAYERS, MEAN, SIZE, STD, folded, lite0

        names = [f"{layer}:{pooling}" for layer in LAYERS for pooling in POOLINGS]
        preprocess = goen.Preprocess(MEAN, STD, SIZE)
        return FeatureExtractor(
            folded(lite0()[0]), names, preprocess=preprocess, example=(3, 32, 32)
        )
    preset_name, _, seed = name.rpartition("-")
    if preset_name in ("fast", "fast-bf16") and seed.isdecimal():
        preset = choose_preset(preset_name, p, "full", int(seed))
        device = torch.device("cpu")
        settings = preset.network, preset.training, p.train, p.calibration_id
        return EveryPooling(train(*settings, stages, device).network)
    network = goen.load(name).network
    backbone = network.network if isinstance(network, FlipAveraged) else network
    assert isinstance(backbone, Backbone)
    return EveryPooling(backbone)


def selection_protocol(data_dir: Path | None) -> Protocol:
    """CIFAR-10 with the other fifty classes of CIFAR-100; every set must be there.

    On one thread from here on: their number is part of a training's key.
    """
    torch.set_num_threads(1)
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=("cifar100-rest",))
    if p.missing:
        raise SystemExit(f"This needs every set; missing: {', '.join(p.missing)}.")
    return p


def selection_sets(p: Protocol) -> Iterator[tuple[str, ImageSet]]:
    """Some training images, ID images, and the OOD images to choose by."""
    sets = {
        TRAIN: p.train,
        CALIBRATION: p.calibration_id,
        "svhn*": p.calibration_ood["svhn"],
        "cifar100*": p.evaluation["cifar100-rest"].images,
        "noise*": p.calibration_ood["noise"],
        **synthetic(p.calibration_id),
    }
    for name, images in sets.items():
        most = min(len(images), MOST.get(name, MOST_OOD))
        yield name, images.split({name: most}, SPLIT_SEED)[name]


def cues_of(network: nn.Module, p: Protocol) -> Cues:
    """Every cue of every set, in standard deviations of the calibration images."""
    outputs = {}
    for name, images in selection_sets(p):
        outputs[name] = extract(network, images)
        if name == TRAIN:
            labels = labels_of(images.labels)
    return cues_from(outputs, labels)


def cues_from(outputs: Mapping[str, Outputs], labels: Tensor, rows: int = ROWS) -> Cues:
    """The same from the network's outputs for each set and the labels of the training images."""
    train = outputs[TRAIN]
    others = {name: outputs[name] for name in outputs if name != TRAIN}
    bank = Bank(tuple(train.features), rows).update(train, labels)
    distances = {
        name: standardised(lambda o, name=name: bank.distance(o, name), others)
        for name in train.features
    }
    of_logits = {
        name: standardised(lambda o, cue=cue: cue(o.logits), others)
        for name, cue in LOGIT_CUES.items()
    }
    return distances | of_logits


def judged(cues: Cues, names: Sequence[str]) -> dict[str, float]:
    """AUROC of the mean of these cues, by set."""
    means = {
        dataset: torch.stack([cues[name][dataset] for name in names]).mean(dim=0).numpy()
        for dataset in cues[names[0]]
    }
    id_scores = means.pop(CALIBRATION)
    return {dataset: float(auroc(tally(id_scores, scores))) for dataset, scores in means.items()}


def candidates(cues: Cues) -> Iterator[tuple[str, ...]]:
    """The sets of cues that are compared."""
    distances = [name for name in cues if name not in LOGIT_CUES]
    alone = {name: judged(cues, [name]) for name in distances}
    best = sorted(distances, key=lambda name: -fmean(alone[name][kind] for kind in REAL))[:BEST]
    for logit_cues in ((), ("entropy",), ("energy",), ("entropy", "energy")):
        if logit_cues:
            yield logit_cues
        for count in (1, 2):
            for chosen in combinations(distances, count):
                yield (*chosen, *logit_cues)
        for chosen in combinations(best, 3):
            yield (*chosen, *logit_cues)


def main(
    network: tyro.conf.Positional[str],
    data_dir: Path | None = None,
    flip_averaging: bool = True,
    stages: Path = Path("runs/stages"),
) -> None:
    """Measure every candidate, print the best, and write the lines.

    Args:
        network: a bundled gate, a gate's folder, ``fast-SEED`` or ``pretrained``.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        flip_averaging: average the features over each image and its mirror image.
        stages: where finished trainings are kept.
    """
    p = selection_protocol(data_dir)
    module = network_of(network, p, Stages(stages))
    cues = cues_of(FlipAveraged(module) if flip_averaging else module, p)
    rows = [(names, judged(cues, names)) for names in candidates(cues)]
    rows.sort(key=lambda row: -fmean(row[1][name] for name in REAL))
    print("mean of three, of all", *(f"{name:>12}" for name in rows[0][1]), "cues")
    for names, values in rows[:25]:
        means = f"{fmean(values[name] for name in REAL):.4f}  {fmean(values.values()):.4f}      "
        print(means, *(f"{value:12.4f}" for value in values.values()), " + ".join(names))
    lines = [
        {"cues": names, "auroc": {k: round(v, 5) for k, v in values.items()}}
        for names, values in rows
    ]
    OUT.mkdir(parents=True, exist_ok=True)
    about = {"network": network, "versions": versions(), "hardware": hardware()}
    text = "".join(json.dumps(line) + "\n" for line in [about, *lines])
    (OUT / f"{Path(network).name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
