"""Near-copies among held-out images: what they do, and how often separate images count as such.

    python benchmarks/near_copies.py            a quarter of an hour on one core

Features of the network of cifar10-w16. Separate images: CIFAR-10's training and test images, and
random splits of other sets into training and held-out images. Near-copies: training rows with
noise, training images saved again as JPEG, and frames: one image moved by up to a pixel, with
noise, again and again. Gates at a false-alarm rate of 0.05, of goen-m and of the distance to the
nearest training image (KNN with k = 1). Printed are the fits that warned, which do not depend on
the detector, and the share of separate new images that the gates flag.
"""

import io
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import goen
from goen.data import ImageSet
from goen.data.sets.sources import load_set
from goen.detectors import KNN, GoenM
from goen.errors import GoenWarning
from goen.gate import Gate
from goen.outputs import Outputs

TRAINING, REPEATS, FRAMES = 12_000, 10, 25
DETECTORS = (GoenM(), KNN(feature=("layer2", "layer4"), k=1))
Pixels = NDArray[np.uint8]


def extracted(gate: Gate, images: Pixels) -> Outputs:
    parts = range(0, len(images), 500)
    return Outputs.concatenate(gate.outputs(images[i : i + 500]) for i in parts)


def saved_again(images: Pixels, quality: int) -> Pixels:
    """The images after a JPEG file."""
    found = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0)).save(file, "JPEG", quality=quality)
        found.append(np.asarray(Image.open(file)).transpose(2, 0, 1))
    return np.stack(found)


def frames(images: Pixels, rng: np.random.RandomState) -> Pixels:
    """So many frames of each image."""

    def one(image: Pixels) -> Pixels:
        moved = np.roll(image, rng.randint(-1, 2, 2), axis=(1, 2)).astype(float)
        return (moved + rng.normal(0, 3, image.shape)).clip(0, 255).astype(np.uint8)

    return np.stack([one(image) for image in images for _ in range(FRAMES)])


def with_noise(outputs: Outputs) -> Outputs:
    drawn = torch.Generator().manual_seed(0)
    features = {
        name: rows + 0.001 * torch.randn(rows.shape, generator=drawn)
        for name, rows in outputs.features.items()
    }
    return Outputs(outputs.logits, features)


def row(name: str, fit: Callable[[int], tuple[Outputs, Outputs, Outputs]]) -> None:
    """One line: so many fits, each of training, held-out and new rows."""
    warned, flagged = 0, []
    for seed in range(REPEATS):
        train, held_out, new = fit(seed)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", GoenWarning)
            gates = [Gate.fit_outputs(train, None, held_out, detector=d) for d in DETECTORS]
        warned += any("near-copies" in str(one.message) for one in told)
        flagged.append([gate.predict_outputs(new[:1000]).is_ood.mean() for gate in gates])
    shares = " | ".join(f"{share:.1%}" for share in np.mean(flagged, axis=0))
    print(f"| {name} | {warned} of {REPEATS} | {shares} |", flush=True)


def pick(outputs: Outputs, seed: int, *counts: int) -> list[Outputs]:
    """Disjoint random parts."""
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(outputs)))
    return [outputs[part] for part in order.split([*counts, len(outputs) - sum(counts)])]


def separate(network: Gate, train: Outputs, test: Outputs) -> None:
    for count in (100, 500, 1000):
        row(
            f"CIFAR-10, training and test images, {count} held out",
            lambda seed, count=count: (train, *pick(test, seed, count)),
        )
    for name in ("digits", "textures", "tiny-imagenet", "places", "svhn/test"):
        images: ImageSet = load_set(name)
        order = np.random.RandomState(0).permutation(len(images))[:3000]
        outputs = extracted(network, images.read(order))
        quarter = len(outputs) // 4

        def split(seed: int, all_of: Outputs = outputs, n: int = quarter) -> tuple[Outputs, ...]:
            held_out, new, rest = pick(all_of, seed, n, n)
            return rest, held_out, new

        row(f"{name}, split at random, {quarter} held out", split)


def copied(network: Gate, pixels: Pixels, train: Outputs, test: Outputs, others: Pixels) -> None:
    rng = np.random.RandomState(0)
    for count in (100, 500):
        row(
            f"training rows with noise of 0.001, {count}",
            lambda seed, count=count: (train, with_noise(pick(train, seed, count)[0]), test),
        )
    for quality in (95, 75):
        again = extracted(network, saved_again(pixels[:1000], quality))
        for count in (100, 1000):
            row(
                f"training images saved again as JPEG of quality {quality}, {count}",
                lambda seed, count=count, again=again: (train, pick(again, seed, count)[0], test),
            )
    taken = extracted(network, frames(others, rng))
    for scenes in (4, 20):

        def of_scenes(seed: int, count: int = scenes) -> tuple[Outputs, ...]:
            chosen = np.random.RandomState(seed).permutation(len(others))[:count]
            rows = (chosen[:, None] * FRAMES + np.arange(FRAMES)).ravel()
            return train, taken[torch.from_numpy(rows)], test

        row(f"{FRAMES} frames of each of {scenes} images", of_scenes)


def main() -> None:
    network = goen.load("cifar10-w16")
    pixels, test = load_set("cifar10/train").read(range(TRAINING)), load_set("cifar10/test")
    train, new = extracted(network, pixels), extracted(network, test.read(range(4000)))
    print("| held-out images | fits that warned | flagged by goen-m | by KNN |")
    print("|---|---:|---:|---:|")
    separate(network, train, new)
    copied(network, pixels, train, new, test.read(range(4000, 4100)))


if __name__ == "__main__":
    main()
