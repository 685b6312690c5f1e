"""Adversarial images: FGSM and PGD on the classifier, and on the OOD score itself.

    python recipes/adversarial.py --seed 42 --data-dir DATA

1,000 test images and 1,000 of SVHN's evaluation images, on GOEN's network. Three objectives: the
cross-entropy of the true class; the score of GOEN, raised on ID images (false alarms) and lowered
on OOD images (missed detections); the same with the score of goen-m. The attacker knows the network
and the detector. Steps in the maximum norm of 2, 4 and 8 grey levels; PGD has 20 steps of 2 grey
levels and a random start. The images are rounded to 8 bits afterwards, since a gate scores images.

Reported for every method: AUROC of clean test images against the attacked images, and the share
flagged at a false-alarm rate of 5 %. Writes results/cifar10/adversarial-SEED.jsonl.

Papers: Goodfellow et al. 2015 (FGSM), Madry et al. 2018 (PGD). Written here because torchattacks
(3.5.1) has no objective but the classifier's; on that one both agree.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, softmax

from goen.data import ImageSet, protocol
from goen.detectors import Detector, Goen, GoenM
from goen.extraction import extract
from goen.functional.conformal import threshold, with_tolerance
from goen.io.files import whole_file
from goen.io.stages import Stages
from goen.metrics import ood_metrics
from goen.outputs import Outputs
from goen.studies.experiment import AS_PRESET, Experiment
from goen.studies.methods import METHODS, labels_of

Objective = Callable[[Tensor, Tensor], Tensor]
"""Floats ``(N, 3, H, W)`` in [0, 1] and labels to numbers ``(N,)`` that an attack raises."""

COUNT = 1_000
EPSILONS = (2, 4, 8)
STEPS, STEP_SIZE = 20, 2
FALSE_ALARM_RATE = 0.05
COMPARED = ("max_softmax", "energy", "knn", "goen_distance", "goen", "goen_m")
_BATCH = 250
OUT = Path(__file__).parents[1] / "results" / "cifar10"


# -- the attacks ---------------------------------------------------------------------------------


def fgsm(images: Tensor, labels: Tensor, objective: Objective, epsilon: int) -> Tensor:
    """The images after one step of ``epsilon`` grey levels by the sign of the gradient, uint8."""
    return _rounded(images, _step(images / 255, labels, objective, epsilon / 255), epsilon)


def pgd(
    images: Tensor,
    labels: Tensor,
    objective: Objective,
    epsilon: int,
    generator: torch.Generator | None,
    steps: int = STEPS,
    step_size: float = STEP_SIZE,
) -> Tensor:
    """The images after many such steps, each back to within ``epsilon`` grey levels, uint8.

    Args:
        images: ``(N, 3, H, W)`` uint8.
        labels: ``(N,)``.
        objective: what the steps raise.
        epsilon: in grey levels.
        generator: of the random start, uniform within ``epsilon``; without it the images.
        steps: how many.
        step_size: in grey levels.
    """
    clean = images / 255
    near = clean
    if generator is not None:
        noise = torch.rand(clean.shape, generator=generator) * 2 - 1
        near = (clean + noise * (epsilon / 255)).clamp(0, 1)
    for _ in range(steps):
        near = _step(near, labels, objective, step_size / 255)
        near = (clean + (near - clean).clamp(-epsilon / 255, epsilon / 255)).clamp(0, 1)
    return _rounded(images, near, epsilon)


def _step(pixels: Tensor, labels: Tensor, objective: Objective, size: float) -> Tensor:
    pixels = pixels.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(pixels, labels).sum(), pixels)
    return pixels.detach() + size * gradient.sign()


def _rounded(images: Tensor, pixels: Tensor, epsilon: int) -> Tensor:
    """To whole grey levels, at most ``epsilon`` of them away from the image's own."""
    levels = (pixels * 255).round().to(torch.int16)
    near = images.to(torch.int16)
    return levels.clamp(near - epsilon, near + epsilon).clamp(0, 255).to(torch.uint8)


# -- what is attacked ----------------------------------------------------------------------------


def differentiable_score(detector: Detector, outputs: Outputs) -> Tensor:
    """The score of GOEN or goen-m ``(N,)``, as ``detector.score``, with gradients.

    The detectors' own arithmetic is detached: it measures again what rounding may have put out of
    order.
    """
    entropy = torch.distributions.Categorical(logits=outputs.logits.double()).entropy()
    if isinstance(detector, GoenM):
        near = [_kth_distance(detector, outputs, layer) for layer in detector.features]
        return detector.score_cues(torch.stack([*near, entropy], dim=1))
    assert isinstance(detector, Goen)
    assert detector.head_ is not None
    unit, whitening = normalize(outputs.feature("z").double()), detector.whitening_
    white = (unit - whitening.centre) @ whitening.precision_chol
    apart = (white[:, None] - whitening.whitened_means).square().sum(dim=2).amin(dim=1)
    similarity = (unit @ detector._means.mT).amax(dim=1)
    cues = torch.stack([apart.log1p(), similarity, entropy], dim=1)
    logit: Tensor = detector.head_(cues.float())
    return logit


def _kth_distance(detector: GoenM, outputs: Outputs, layer: str) -> Tensor:
    """The distance to the neighbour that goen-m measures; which one it is has no gradient."""
    unit = normalize(outputs.feature(layer).double())
    bank = detector.bank_.unit[layer].double()
    place = torch.cdist(unit.detach(), bank).kthvalue(detector.bank_.neighbour, dim=1).indices
    return torch.linalg.vector_norm(unit - bank[place], dim=1)


def classifier_loss(network: nn.Module) -> Objective:
    """The cross-entropy of the label."""
    return lambda pixels, labels: cross_entropy(network(pixels).logits, labels, reduction="none")


def score_of(network: nn.Module, detector: Detector, sign: int) -> Objective:
    """The detector's score, to be raised (1) or lowered (-1)."""
    return lambda pixels, _: sign * differentiable_score(detector, network(pixels))


def attacked(
    images: ImageSet, objective: Objective, attack: str, epsilon: int, seed: int
) -> ImageSet:
    """The attacked images, with the labels of the images."""
    generator = torch.Generator().manual_seed(seed)
    labels, parts = labels_of(images.labels), []
    for start in range(0, len(images), _BATCH):
        rows = slice(start, start + _BATCH)
        pixels = torch.from_numpy(images.read(rows))
        given = (pixels, labels[rows], objective, epsilon)
        parts.append(fgsm(*given) if attack == "fgsm" else pgd(*given, generator))
    found = torch.cat(parts).numpy()
    return ImageSet(f"{attack}-{epsilon} {images.name}", found, images.labels, images.classes)


# -- measurements --------------------------------------------------------------------------------


def measured(
    outputs: Outputs,
    labels: NDArray[np.int64] | None,
    detectors: Mapping[str, Detector],
    clean: Mapping[str, NDArray[np.float64]],
    limits: Mapping[str, float],
) -> list[dict[str, object]]:
    """AUROC against clean test images and share flagged by method, and the accuracy.

    Args:
        outputs: of the attacked images.
        labels: of ID images.
        detectors: fitted, by method.
        clean: the scores of the clean test images, by method.
        limits: the thresholds, by method.
    """
    lines: list[dict[str, object]] = []
    if labels is not None:
        right = float((outputs.logits.argmax(dim=1).numpy() == labels).mean())
        confidence = float(softmax(outputs.logits, dim=1).amax(dim=1).mean())
        lines.append({"method": "classifier", "metric": "accuracy", "value": right})
        lines.append({"method": "classifier", "metric": "mean_confidence", "value": confidence})
    for name, detector in detectors.items():
        scores = detector.score(outputs).numpy()
        m = ood_metrics(clean[name], scores)
        bounds = {"low": m.auroc_low, "high": m.auroc_high}
        lines.append({"method": name, "metric": "auroc", "value": m.auroc, **bounds})
        flagged = float((scores > limits[name]).mean())
        lines.append({"method": name, "metric": "flagged", "value": flagged})
    return lines


def main(
    seed: int = 42,
    preset: str = "short",
    data_dir: Path | None = None,
    stages: Path = Path("runs/stages"),
    count: int = COUNT,
) -> None:
    """Attack, measure, print and write.

    Args:
        seed: of the network and of the random starts.
        preset: of the network, which is that of goen run.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        stages: where finished work is kept.
        count: how many images of each set.
    """
    torch.set_num_threads(1)  # the number is part of the network's key
    p = protocol("cifar10", data_dir=data_dir, download=True, calibration=("svhn", "noise"))
    experiment = Experiment(preset, "full", seed, p, Stages(stages))
    network = experiment.members(AS_PRESET)[0].network.requires_grad_(False)
    fitted = {k: experiment.fit(replace(METHODS[k], network=AS_PRESET)) for k in COMPARED}
    limits = {
        key: threshold(with_tolerance(experiment.score(f, p.held_out)[0]), FALSE_ALARM_RATE)
        for key, f in fitted.items()
    }
    detectors = {key: f.detector for key, f in fitted.items()}
    sets = {
        "test": p.test.take(range(count), "test"),
        "svhn": p.evaluation["svhn"].images.take(range(count), "svhn"),
    }
    objectives = {("classifier", "test"): classifier_loss(network)}
    for key in ("goen", "goen_m"):
        objectives[key, "test"] = score_of(network, detectors[key], 1)
        objectives[key, "svhn"] = score_of(network, detectors[key], -1)
    plain = {name: extract(network, images) for name, images in sets.items()}
    clean = {key: d.score(plain["test"]).numpy() for key, d in detectors.items()}
    origin = {"seed": seed, "preset": preset, "network": experiment.members(AS_PRESET)[0].key}
    lines: list[dict[str, object]] = []

    def note(outputs: Outputs, **settings: object) -> None:
        labels = sets["test"].labels if settings["dataset"] == "test" else None
        found = measured(outputs, labels, detectors, clean, limits)
        lines.extend({**settings, **line, **origin} for line in found)
        short = {f"{x['method']} {x['metric']}": round(float(str(x["value"])), 3) for x in found}
        print(*settings.values(), short, flush=True)

    for name in sets:
        note(plain[name], attack="none", epsilon=0, objective="none", dataset=name)
    for attack in ("fgsm", "pgd"):
        for epsilon in EPSILONS:
            for (target, name), objective in objectives.items():
                outputs = extract(network, attacked(sets[name], objective, attack, epsilon, seed))
                note(outputs, attack=attack, epsilon=epsilon, objective=target, dataset=name)
    with whole_file(OUT / f"adversarial-{seed}.jsonl", overwrite=True) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
