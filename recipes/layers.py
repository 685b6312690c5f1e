"""What the choice of layers loses: the pair that goen chooses against every other pair.

    python recipes/layers.py                    (four minutes on one core; CIFAR-10 is downloaded)

Six networks: five small ones, trained here on the digits 0 to 4 for some seconds, and the bundled
one. For each pair of the layers that `goen.list_layers` lists, goen-m is fitted without OOD images,
and its AUROC is averaged over kinds of OOD images in no published table: four that are made of ID
test images and, for the small networks, the digits 5 and 6. docs/own-model.md has the numbers.
"""

import platform
from collections.abc import Callable, Mapping
from itertools import combinations, pairwise

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import goen
from goen.data import ImageSet, protocol
from goen.detectors import GoenM
from goen.extraction import extract
from goen.features.layers import choose_layers
from goen.metrics import ood_metrics
from goen.models import NetworkConfig, ResNet18
from goen.models.flip_averaging import FlipAveraged
from goen.outputs import Outputs

Pixels = NDArray[np.uint8]


# -- OOD images, made of ID images -----------------------------------------------------------


def tiles(images: Pixels, rng: np.random.Generator) -> Pixels:
    """Sixteen tiles of each image, in another order."""
    count, channels, height, width = images.shape
    grid = images.reshape(count, channels, 4, height // 4, 4, width // 4)
    cells = grid.transpose(0, 2, 4, 1, 3, 5).reshape(count, 16, channels, height // 4, width // 4)
    shuffled = np.stack([image[rng.permutation(16)] for image in cells])
    back = shuffled.reshape(count, 4, 4, channels, height // 4, width // 4)
    return back.transpose(0, 3, 1, 4, 2, 5).reshape(images.shape)


def blends(images: Pixels, rng: np.random.Generator) -> Pixels:
    """The mean of two images."""
    other = images[rng.permutation(len(images))]
    return ((images.astype(np.uint16) + other) // 2).astype(np.uint8)


def spectra(images: Pixels, rng: np.random.Generator) -> Pixels:
    """The amplitudes of an image's Fourier transform with the phases of noise."""
    phases = np.angle(np.fft.rfft2(rng.normal(size=(len(images), 1, *images.shape[2:]))))
    made = np.fft.irfft2(np.abs(np.fft.rfft2(images)) * np.exp(1j * phases), images.shape[2:])
    return np.clip(made, 0, 255).astype(np.uint8)


def negatives(images: Pixels, _: np.random.Generator) -> Pixels:
    """Black for white."""
    return 255 - images


KINDS = (tiles, blends, spectra, negatives)


# -- networks --------------------------------------------------------------------------------


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU())


def three_convolutions() -> nn.Module:
    """The network of the README."""
    body = (block(3, 12), block(12, 16), block(16, 24))
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))


def four_convolutions() -> nn.Module:
    """The classifier reads the flattened map."""
    body = (block(3, 16), block(16, 24), block(24, 32), block(32, 48))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(4 * 48, 5))


def perceptron() -> nn.Module:
    widths = [3 * 32 * 32, 256, 128, 64]
    hidden = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 5))


class Transformer(nn.Module):
    """A small vision transformer that averages its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 4, 4)
        self.position = nn.Parameter(torch.randn(1, 64, 48) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(48, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(6)
        )
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        for part in self.blocks:
            x = part(x)
        return self.head(self.norm(x).mean(1))


class Residual(nn.Module):
    """goen's ResNet-18 of width 8 as a model of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet18(NetworkConfig(5, 8, representation="plain"))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).logits


SMALL: Mapping[str, Callable[[], nn.Module]] = {
    "three convolutions": three_convolutions,
    "four convolutions": four_convolutions,
    "perceptron": perceptron,
    "transformer": Transformer,
    "ResNet-18, width 8": Residual,
}


def trained(build: Callable[[], nn.Module], images: ImageSet, seed: int) -> nn.Module:
    """The network after 20 epochs of Adam, the rate falling to zero."""
    torch.manual_seed(seed)
    model = build().train()
    x, labels = torch.from_numpy(images.read()) / 255, torch.from_numpy(images.labels)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    steps = [rows for _ in range(20) for rows in torch.randperm(len(x)).split(32)]
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, len(steps))
    for rows in steps:
        optimiser.zero_grad()
        cross_entropy(model(x[rows]), labels[rows]).backward()
        optimiser.step()
        schedule.step()
    return model.eval()


# -- measuring -------------------------------------------------------------------------------


def mean_auroc(
    pair: tuple[str, ...],
    fitting: tuple[Outputs, Tensor, Outputs],
    test: Outputs,
    ood: Mapping[str, Outputs],
) -> float:
    """Of goen-m with these layers, over the kinds of OOD images."""
    train, labels, held_out = fitting
    detector = GoenM(pair).fit(train.keep(pair), labels, held_out=held_out.keep(pair))
    at_home = detector.score(test.keep(pair)).numpy()
    away = [detector.score(outputs.keep(pair)).numpy() for outputs in ood.values()]
    return float(np.mean([ood_metrics(at_home, scores).auroc for scores in away]))


def measure(
    name: str, model: nn.Module, sets: tuple[ImageSet, ImageSet, ImageSet], *others: ImageSet
) -> None:
    """Print one row: the pair chosen, the best pair, and the median of all pairs.

    Args:
        name: of the network.
        model: trained.
        sets: training images, held-out ID images, ID test images.
        others: OOD images, beside those made of the test images.
    """
    train, held_out, test = sets
    example = torch.from_numpy(train.read(range(8)))
    table = goen.list_layers(model, example, layout="channels_first")
    network = goen.FeatureExtractor(model, [info.name for info in table], layout="channels_first")
    chosen = choose_layers(table, extract(network, train.take(range(8))).features)
    rng = np.random.default_rng(0)
    pixels = test.read()
    made = {kind.__name__: kind(pixels, rng) for kind in KINDS}
    ood = {
        kind: extract(network, ImageSet(kind, images, test.labels, test.classes))
        for kind, images in made.items()
    } | {images.name: extract(network, images) for images in others}
    fitting = (extract(network, train), torch.from_numpy(train.labels), extract(network, held_out))
    at_home = extract(network, test)
    accuracy = float((at_home.logits.argmax(1) == torch.from_numpy(test.labels)).double().mean())
    aurocs = {
        pair: mean_auroc(pair, fitting, at_home, ood)
        for pair in combinations([info.name for info in table if info.depth], 2)
    }
    best = max(aurocs, key=aurocs.__getitem__)
    rank = 1 + sum(value > aurocs[chosen] for value in aurocs.values())
    print(
        f"| {name} | {accuracy:.3f} | {', '.join(chosen)} | {aurocs[chosen]:.4f} | "
        f"{', '.join(best)} | {aurocs[best]:.4f} | {np.median(list(aurocs.values())):.4f} | "
        f"{rank} of {len(aurocs)} |",
        flush=True,
    )


def main(seeds: tuple[int, ...] = (0, 1, 2), cifar10: bool = True) -> None:
    """Print the table.

    Args:
        seeds: of the trainings on the digits.
        cifar10: also the bundled network.
    """
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, "
          f"{platform.machine()}")  # fmt: skip
    print("| network | accuracy | chosen | mean AUROC | best pair | its | median | rank |")
    print("|---|---:|---|---:|---|---:|---:|---:|")
    p = protocol("digits")
    known = [part.of_classes(tuple("01234"), part.name) for part in (p.train, p.validation, p.test)]
    other = p.test.of_classes(tuple("56"), "digits 5 and 6")
    for name, build in SMALL.items():
        for seed in seeds:
            model = trained(build, known[0], seed)
            measure(f"{name}, seed {seed}", model, (known[0], known[1], known[2]), other)
    if cifar10:
        gate, p = goen.load("cifar10-w16"), protocol("cifar10", download=True)
        assert isinstance(gate.network, FlipAveraged)
        few = p.train.take(range(5000)), p.validation.take(range(2000)), p.test.take(range(2000))
        measure("bundled network", gate.network.network, few)


if __name__ == "__main__":
    tyro.cli(main)
