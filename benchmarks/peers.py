"""Against pytorch-ood 0.4.0 in the same run: same network, same images.

    pip install --no-deps pytorch-ood==0.4.0 torchvision==0.28.0
    python benchmarks/peers.py

Energy, Mahalanobis and KNN together: pytorch-ood's detectors each pass the images through the
network; goen passes them once. Goal: at least 2.5 × faster. ODIN: both take the gradient of the
images alone (pytorch-ood since 0.4.0): the same work, and the goal is not to be slower. AUROCs
are equal to 0.0005 where pytorch-ood is numerically sound. Times are of the sets five times over.
"""

import argparse
import sys

import numpy as np
import torch
from torch import Tensor, nn

import goen
from goen.data import ImageSet
from goen.detectors import KNN, ODIN, Energy, Mahalanobis, Perturbed
from goen.extraction import extract
from goen.models import NetworkConfig
from goen.training import TrainingConfig, train_backbone
from timing import header, interleave, ratio, report


def pytorch_ood():  # type: ignore[no-untyped-def]
    """Its detectors; a CPU build of torch has no operators for torchvision, so two are declared."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        sys.exit(__doc__)
    except RuntimeError:
        for name in [n for n in sys.modules if n.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_library"] = library  # it lives as long as somebody holds it
    try:
        from pytorch_ood import detector
    except ImportError:
        sys.exit(__doc__)
    return detector


class Part(nn.Module):
    """The network as pytorch-ood wants it: images in, one tensor out."""

    def __init__(self, network: nn.Module, feature: str | None) -> None:
        super().__init__()
        self.network, self.feature = network, feature

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.network(images)
        tensor: Tensor = outputs.features[self.feature] if self.feature else outputs.logits
        return tensor


class Odin(nn.Module):
    """For its ODIN: images of which the mean is off and the deviation divided out already."""

    def __init__(self, network: nn.Module, std: Tensor, mean: Tensor) -> None:
        super().__init__()
        self.network, self.std, self.mean = network, std, mean

    def forward(self, normalised: Tensor) -> Tensor:
        logits: Tensor = self.network(normalised * self.std + self.mean).logits
        return logits


def floats(images: ImageSet) -> list[Tensor]:
    return [torch.from_numpy(batch).float() / 255 for batch in images.batches(256)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    theirs = pytorch_ood()
    header("pytorch-ood", "torchvision", "scikit-learn")
    p = goen.data.protocol("digits")
    config = NetworkConfig(
        num_classes=7, width=16, head="plain", mean=(0.3, 0.3, 0.3), std=(0.35, 0.35, 0.35)
    )
    training = TrainingConfig(epochs=4, batch_size=64, flip="never", label_smoothing=0.0)
    network, _ = train_backbone(config, training, p.train, p.validation)
    network.eval()
    train, test, unseen = (
        images.take(np.tile(np.arange(len(images)), 5))
        for images in (p.train, p.test, p.evaluation["unseen-digits"].images)
    )
    labels = torch.from_numpy(train.labels)
    batches = {s.name: floats(s) for s in (train, test, unseen)}
    starts = np.cumsum([0, *map(len, batches[train.name])])
    loader = [
        (batch, labels[start : start + len(batch)])
        for start, batch in zip(starts, batches[train.name], strict=False)
    ]

    def ours_all() -> dict[str, list[Tensor]]:
        fit = extract(network, train)
        outputs = [extract(network, s) for s in (test, unseen)]
        detectors = {
            "energy": Energy(),
            "mahalanobis": Mahalanobis().fit(fit, labels),
            "knn": KNN().fit(fit, labels),
        }
        return {name: [d.score(o) for o in outputs] for name, d in detectors.items()}

    def predicted(detector: object, images: list[Tensor]) -> Tensor:
        with torch.no_grad():
            return torch.cat([detector.predict(batch) for batch in images])  # type: ignore[attr-defined]

    def theirs_all() -> dict[str, list[Tensor]]:
        with torch.no_grad():
            detectors = {
                "energy": theirs.EnergyBased(Part(network, None)),
                "mahalanobis": theirs.Mahalanobis(Part(network, "z")).fit(loader),
                "knn": theirs.KNN(Part(network, "z")).fit(loader),
            }
        sets = (batches[test.name], batches[unseen.name])
        return {name: [predicted(d, s) for s in sets] for name, d in detectors.items()}

    def ours_odin() -> list[Tensor]:
        return [ODIN().score(extract(Perturbed(network), s)) for s in (test, unseen)]

    mean, std = network.mean, network.std
    odin_net = Odin(network, std, mean)

    def theirs_odin() -> list[Tensor]:
        detector = theirs.ODIN(odin_net, eps=0.0014, norm_std=std.flatten().tolist())
        found = []
        for name in (test.name, unseen.name):
            # A copy: it sets requires_grad on what it is given.
            normalised = [((batch - mean) / std).clone() for batch in batches[name]]
            found.append(torch.cat([detector.predict(batch).detach() for batch in normalised]))
        return found

    ours, peers = ours_all(), theirs_all()
    ours["odin"], peers["odin"] = ours_odin(), theirs_odin()
    met = True
    for name in ours:
        a, b = (
            goen.metrics.ood_metrics(*(s.double().numpy() for s in scores)).auroc
            for scores in (ours[name], peers[name])
        )
        met &= report(f"AUROC {name}: {a:.5f} ours, {b:.5f} theirs", abs(a - b), 0.0005)
    taken = interleave(
        {"ours": ours_all, "theirs": theirs_all, "odin": ours_odin, "their odin": theirs_odin},
        repeats,
    )
    met &= report("energy + Mahalanobis + KNN: time / theirs", ratio(taken, "ours", "theirs"), 0.4)
    met &= report("ODIN: time / theirs", ratio(taken, "odin", "their odin"), 1.1)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
