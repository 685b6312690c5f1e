"""Features in blobs, ID and OOD, and classifiers trained on them, each with its own loss."""

from functools import cache

import torch
from torch import Tensor, nn

from goen.detectors.adascale import MOVED
from goen.detectors.odin import PERTURBED
from goen.models.classifiers import CLASSIFIERS, Classifier, MixtureOfExperts
from goen.outputs import LinearClassifier, Outputs

CLASSES, DIM = 4, 16


@cache
def axes() -> Tensor:
    """Sixteen directions at right angles, none along a feature: a class is not one feature."""
    generator = torch.Generator().manual_seed(3)
    return torch.linalg.qr(torch.randn(DIM, DIM, generator=generator)).Q


def centres() -> Tensor:
    """Of four classes, at right angles."""
    return 8 * axes()[:CLASSES]


def id_features(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    spread = torch.linspace(0.2, 1.0, DIM)
    around = spread * torch.randn(count, DIM, generator=generator) @ axes()
    return centres()[labels] + around, labels


def ood_features(count: int, seed: int) -> Tensor:
    """Between two classes, nearer to nothing, and off to a side where no class ever goes."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.arange(count) % CLASSES
    between = 0.3 * (centres()[first] + centres()[(first + 1) % CLASSES])
    aside = 4 * axes()[CLASSES]
    return between + aside + 0.3 * torch.randn(count, DIM, generator=generator)


@cache
def classifier(kind: str, seed: int = 0, *, relu: bool = False) -> Classifier:
    """A classifier trained on the blobs with its own loss."""
    features, labels = id_features(400, seed=1)
    features = features.relu() if relu else features
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        head = CLASSIFIERS[kind](DIM, CLASSES)  # type: ignore[index]
        wanted = [p for p in head.parameters() if p.requires_grad]
        optimiser = torch.optim.Adam(wanted, 0.02)
        for step in range(150):
            optimiser.zero_grad()
            loss, _ = head.loss(features, labels, progress=step / 150)
            loss.backward()
            optimiser.step()
    if isinstance(head, MixtureOfExperts):
        # Any one expert can tell the blobs apart, so training gives the gate no reason to know
        # them. This one does: an expert for each class, and one for nothing.
        with torch.no_grad():
            head.gate.weight[:CLASSES] = centres() / 16
            head.gate.weight[CLASSES:] = 0
            head.gate.bias.zero_()
    return head.eval()


def blob_outputs(
    features: Tensor,
    labels: Tensor | None = None,
    *,
    perturbed: bool = False,
    relu: bool = False,
) -> Outputs:
    """Of a network of two features, whose linear classifier reads the last.

    The uncertainty is that of an evidential classifier. ``perturbed`` adds what ODIN and
    AdaSCALE read of moved images. ``relu`` is for methods that are made for features behind a ReLU.
    """
    features = features.relu() if relu else features
    linear = classifier("linear", relu=relu)
    assert isinstance(linear, nn.Linear)
    with torch.no_grad():
        logits = linear(features)
        _, uncertainty = classifier("evidential", relu=relu).predict(features)
    parts = {"layer2": features[:, ::2], "z": features}
    if perturbed:  # OOD features are shorter, and move more
        moved = features + 40 / features.square().sum(dim=1, keepdim=True)
        parts |= {PERTURBED: 1.01 * logits, MOVED: moved}
    return Outputs(logits, parts, uncertainty, LinearClassifier.of(linear, "z"), labels)
