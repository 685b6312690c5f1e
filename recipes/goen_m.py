"""How goen-m was chosen: cues and fusions, compared on sets without reported results.

    python recipes/goen_m.py --seed 42 --data-dir DATA      (the network of recipes/bench.sh)

Chosen on: SVHN's 5,000 calibration images, the fifty classes of CIFAR-100 that the protocol leaves
out, other noise, and synthetic OOD images made from the calibration images. The ID side is the
3,000 calibration images. Reported on: the test images against the protocol's sets, which are not
used for model selection. Writes results/cifar10/goen-m-SEED.jsonl, a line per candidate and set.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from scipy.stats import norm
from sets import EXTRA
from torch import Tensor, nn

from goen.data import ImageSet, protocol
from goen.detectors import GEN, Goen, RelativeMahalanobis
from goen.detectors._bank import Bank
from goen.functional.conformal import p_values
from goen.functional.cues import entropy
from goen.functional.fusion import fuse
from goen.io.stages import Stages
from goen.metrics import ood_metrics
from goen.outputs import Outputs
from goen.studies.experiment import Experiment
from goen.studies.methods import labels_of

Pixels = NDArray[np.uint8]
LAYERS = ("layer1", "layer2", "layer3", "layer4", "z")
OUT = Path(__file__).parents[1] / "results" / "cifar10"


# -- synthetic OOD images ------------------------------------------------------------------------


def mixtures(images: Pixels, labels: NDArray[np.int64], rng: np.random.Generator) -> Pixels:
    """The mean of two images of different classes."""
    other = rng.permutation(len(images))
    apart = labels != labels[other]
    whole = images[apart].astype(np.uint16) + images[other[apart]]
    return (whole // 2).astype(np.uint8)


def shuffled(images: Pixels, side: int, rng: np.random.Generator) -> Pixels:
    """Squares of this side in another order."""
    count, channels, height, width = images.shape
    rows, columns = height // side, width // side
    tiles = images.reshape(count, channels, rows, side, columns, side)
    tiles = tiles.transpose(0, 2, 4, 1, 3, 5).reshape(count, rows * columns, channels, side, side)
    order = rng.permuted(np.tile(np.arange(rows * columns), (count, 1)), axis=1)
    tiles = np.take_along_axis(tiles, order[:, :, None, None, None], axis=1)
    tiles = tiles.reshape(count, rows, columns, channels, side, side)
    return tiles.transpose(0, 3, 1, 4, 2, 5).reshape(images.shape)


def scrambled(images: Pixels, rng: np.random.Generator) -> Pixels:
    """The same amplitudes at every frequency, the phases moved by those of noise."""
    spectrum = np.fft.fft2(images.astype(np.float64))
    noise = rng.normal(size=(len(images), 1, *images.shape[2:]))
    moved = spectrum * np.exp(1j * np.angle(np.fft.fft2(noise)))
    return np.clip(np.fft.ifft2(moved).real, 0, 255).astype(np.uint8)


def synthetic(images: ImageSet) -> dict[str, ImageSet]:
    """Synthetic OOD images by kind."""
    rng = np.random.default_rng(0)
    pixels, labels = images.read(), images.labels
    kinds = {
        "mixtures": mixtures(pixels, labels, rng),
        "patches of 4": shuffled(pixels, 4, rng),
        "patches of 8": shuffled(pixels, 8, rng),
        "phases": scrambled(pixels, rng),
        "upside down": np.ascontiguousarray(pixels[:, :, ::-1]),
    }
    return {
        name: ImageSet(
            f"{name} of calibration images", p, np.zeros(len(p), np.int64), ("synthetic",)
        )
        for name, p in kinds.items()
    }


# -- cues ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scored:
    """Cues of every set, standardised by the calibration images: ``{cue: {set: (N,)}}``."""

    cues: dict[str, dict[str, Tensor]]

    def columns(self, names: Sequence[str], dataset: str) -> Tensor:
        return torch.stack([self.cues[name][dataset] for name in names], dim=1)


def measures(train: Outputs, labels: Tensor) -> dict[str, Callable[[Outputs], Tensor]]:
    """Every cue by name, fitted on the training images."""
    found: dict[str, Callable[[Outputs], Tensor]] = {
        "entropy": lambda o: entropy(o.logits),
        "GEN": GEN().score,
    }
    banks = {rows: Bank(LAYERS, rows).update(train, labels) for rows in (500, 5_000, 45_000)}

    def near(bank: Bank, layer: str) -> Callable[[Outputs], Tensor]:
        return lambda outputs: bank.distance(outputs, layer)

    for layer in LAYERS:
        for rows, bank in banks.items():
            found[f"near {layer}" + ("" if rows == 5_000 else f" of {rows}")] = near(bank, layer)
        for share in ("none", "oas"):
            distance = Goen(feature=layer, shrinkage=share).fit(train, labels)
            found[f"mahalanobis {layer}" + ("" if share == "oas" else " unshrunk")] = distance.score
    found["relative mahalanobis layer4"] = (
        RelativeMahalanobis(feature="layer4").fit(train, labels).score
    )
    return found


def standardised(cue: Callable[[Outputs], Tensor], sets: dict[str, Outputs]) -> dict[str, Tensor]:
    """The cue of every set, in standard deviations of the calibration images."""
    values = {name: cue(outputs).double() for name, outputs in sets.items()}
    reference = values["calibration"]
    return {name: (value - reference.mean()) / reference.std() for name, value in values.items()}


# -- fusions -------------------------------------------------------------------------------------


def tails(columns: Tensor, id_cues: Tensor) -> NDArray[np.float64]:
    """Conformal p-values, column by column."""
    pairs = zip(columns.numpy().T, id_cues.numpy().T, strict=True)
    return np.stack([p_values(column, np.sort(own)) for column, own in pairs], axis=1)


FUSIONS: dict[str, Callable[[Tensor, Tensor], NDArray[np.float64]]] = {
    "largest": lambda z, id_cues: z.amax(dim=1).numpy(),
    "softplus": lambda z, id_cues: nn.functional.softplus(z).sum(dim=1).numpy(),
    "Fisher": lambda z, id_cues: -np.log(tails(z, id_cues)).sum(axis=1),
    "Stouffer": lambda z, id_cues: norm.isf(tails(z, id_cues)).sum(axis=1),
    "least p": lambda z, id_cues: -tails(z, id_cues).min(axis=1),
}


def monotone_network(id_cues: Tensor, kinds: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """Two layers with weights that are not below zero, trained to tell ID from the kinds."""
    torch.manual_seed(0)
    raw = [torch.randn(16, id_cues.shape[1]) - 1, torch.randn(16), torch.randn(1, 16) - 1]
    weights = [w.double().requires_grad_() for w in raw]

    def score(z: Tensor) -> Tensor:
        hidden = torch.tanh(z @ nn.functional.softplus(weights[0]).T + weights[1])
        return (hidden @ nn.functional.softplus(weights[2]).T)[:, 0]

    bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([*weights, bias], 0.02)
    for _ in range(300):
        loss = nn.functional.softplus(score(id_cues) + bias).mean()
        loss = loss + sum(nn.functional.softplus(-score(k) - bias).mean() for k in kinds) / len(
            kinds
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return lambda z: score(z).detach()


# -- candidates ----------------------------------------------------------------------------------

OURS = ("near layer2", "near layer4", "entropy")
CUE_SETS: dict[str, tuple[str, ...]] = {
    "goen-m: near neighbours in layers 2 and 4, entropy": OURS,
    "near neighbours in layers 2 and 4": OURS[:2],
    "near neighbours in layer 4, entropy": OURS[1:],
    "near neighbours in layer 2, entropy": ("near layer2", "entropy"),
    "near neighbours in layers 3 and 4, entropy": ("near layer3", "near layer4", "entropy"),
    "near neighbours in all four layers, entropy": (
        *(f"near layer{i}" for i in range(1, 5)),
        "entropy",
    ),
    "near neighbours in layers 2, 4 and z, entropy": (*OURS, "near z"),
    "near neighbours in z, entropy": ("near z", "entropy"),
    "near neighbours in layers 2 and 4, GEN": (*OURS[:2], "GEN"),
    "near neighbours of 500 images": ("near layer2 of 500", "near layer4 of 500", "entropy"),
    "near neighbours of all images": ("near layer2 of 45000", "near layer4 of 45000", "entropy"),
    "Mahalanobis in layers 2 and 4, entropy": (
        "mahalanobis layer2",
        "mahalanobis layer4",
        "entropy",
    ),
    "Mahalanobis in layers 2 and 4, not shrunk, entropy": (
        "mahalanobis layer2 unshrunk",
        "mahalanobis layer4 unshrunk",
        "entropy",
    ),
    "Mahalanobis in all four layers, entropy": (
        *(f"mahalanobis layer{i}" for i in range(1, 5)),
        "entropy",
    ),
    "Mahalanobis in layer 2, relative Mahalanobis in layer 4, entropy": (
        "mahalanobis layer2",
        "relative mahalanobis layer4",
        "entropy",
    ),
    "both distances in layers 2 and 4, entropy": (
        *OURS,
        "mahalanobis layer2",
        "mahalanobis layer4",
    ),
}
FITTED_KINDS: dict[str, tuple[str, ...]] = {
    "noise": ("noise*",),
    "SVHN and noise": ("svhn*", "noise*"),
    "mixtures": ("mixtures",),
    "patches of 8": ("patches of 8",),
    "phases": ("phases",),
    "mixtures and phases": ("mixtures", "phases"),
    "all synthetic images": (
        "mixtures",
        "patches of 4",
        "patches of 8",
        "phases",
        "upside down",
    ),
}


def candidates(
    scored: Scored, reported: Sequence[str], datasets: Sequence[str]
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Every candidate's scores of every set."""
    id_cues = scored.columns(OURS, "calibration")
    ours = {name: scored.columns(OURS, name) for name in datasets}
    found = {
        title: {n: scored.columns(cues, n).mean(dim=1).numpy() for n in datasets}
        for title, cues in CUE_SETS.items()
    }
    for title, fusion in FUSIONS.items():
        found[f"fused by: {title}"] = {n: fusion(z, id_cues) for n, z in ours.items()}
    for title, kinds in FITTED_KINDS.items():
        fitted_with = [ours[kind] for kind in kinds]
        weights, _ = fuse(id_cues, fitted_with)
        found[f"weights fitted with: {title}"] = {n: (z @ weights).numpy() for n, z in ours.items()}
        learnt = monotone_network(id_cues, fitted_with)
        found[f"monotone network fitted with: {title}"] = {
            n: learnt(z).numpy() for n, z in ours.items()
        }
    # Leave one out: the weights for each reported set are fitted with all other reported sets.
    left_out: dict[str, NDArray[np.float64]] = {}
    for name in reported:
        weights, _ = fuse(id_cues, [ours[other] for other in reported if other != name])
        left_out[name] = (ours[name] @ weights).numpy()
        left_out[f"test for {name}"] = (ours["test"] @ weights).numpy()
    found["weights fitted with: every reported set but the evaluated one"] = left_out
    return found


def main(seed: int = 42, data_dir: Path | None = None, stages: Path = Path("runs/stages")) -> None:
    """Compare, print, and write the lines.

    Args:
        seed: of the network.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        stages: where finished work is kept.
    """
    torch.set_num_threads(1)  # as recipes/bench.sh: the number is part of the network's key
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    if p.missing:
        raise SystemExit(f"This needs every set; missing: {', '.join(p.missing)}.")
    experiment = Experiment("cpu", "full", seed, p, Stages(stages))
    reported = {name: ood.images for name, ood in p.evaluation.items()}
    chosen_on = {
        "svhn*": p.calibration_ood["svhn"],
        "cifar100*": reported.pop("cifar100-rest"),
        "noise*": p.calibration_ood["noise"],
        **synthetic(p.calibration_id),
    }
    sets = {"calibration": p.calibration_id, "test": p.test, **chosen_on, **reported}
    extracted = {
        name: experiment.outputs("goen", images, "flip_averaged")[0]
        for name, images in sets.items()
    }
    train = experiment.outputs("goen", p.train, "flip_averaged")[0]
    fitted = measures(train, labels_of(p.train.labels))
    scored = Scored({name: standardised(cue, extracted) for name, cue in fitted.items()})
    lines = []
    for title, scores in candidates(scored, list(reported), list(extracted)).items():
        for name in (*chosen_on, *reported):
            if name not in scores:
                continue
            group = "chosen on" if name in chosen_on else "reported"
            id_scores = scores.get(f"test for {name}", scores.get("test"))
            if group == "chosen on":
                id_scores = scores["calibration"]
            m = ood_metrics(id_scores, scores[name])
            lines.append(
                {
                    "candidate": title,
                    "seed": seed,
                    "dataset": name,
                    "group": group,
                    "metric": "auroc",
                    "value": m.auroc,
                    "low": m.auroc_low,
                    "high": m.auroc_high,
                    "network": experiment.members("goen")[0].key,
                }
            )
        mine = [line for line in lines if line["candidate"] == title]
        means = {
            group: np.mean([line["value"] for line in mine if line["group"] == group] or [np.nan])
            for group in ("chosen on", "reported")
        }
        print(f"{title:75} {means['chosen on']:.4f} {means['reported']:.4f}", flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (OUT / f"goen-m-{seed}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
