"""What feeding augmented batches costs, as a share of a training step, and against Pillow.

    python benchmarks/data.py

Batches of 128 images of 32×32 from a memory-mapped set of 45,000, random order, crop and flip,
against one forward, backward and SGD step of ResNet-18 of width 16 on a ready batch; and against
the same augmentation image by image through Pillow. Interleaved, medians over repeats.

Goal: at most 3 % of the step.
"""

import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn.functional import cross_entropy

from goen.data.transforms.augment import random_crop_flip
from goen.models import NetworkConfig, ResNet18
from timing import header, interleave, ratio, report

BATCH, REPEATS = 128, 15


def main() -> None:
    header()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npy"
        np.save(path, rng.integers(0, 256, (45_000, 3, 32, 32), dtype=np.uint8))
        pixels = np.load(path, mmap_mode="r")
        generator = torch.Generator().manual_seed(0)

        def feed() -> torch.Tensor:
            rows = rng.integers(0, len(pixels), BATCH)
            return random_crop_flip(torch.from_numpy(pixels[rows]), generator)

        def feed_by_pillow() -> torch.Tensor:
            out = np.empty((BATCH, 3, 32, 32), np.uint8)
            for place, row in enumerate(rng.integers(0, len(pixels), BATCH)):
                picture = Image.fromarray(np.ascontiguousarray(pixels[row].transpose(1, 2, 0)))
                padded = ImageOps.expand(picture, 4)
                x, y = rng.integers(0, 9, 2).tolist()
                crop = padded.crop((x, y, x + 32, y + 32))
                if rng.random() < 0.5:
                    crop = ImageOps.mirror(crop)
                out[place] = np.asarray(crop).transpose(2, 0, 1)
            return torch.from_numpy(out)

        network = ResNet18(NetworkConfig(width=16))
        optimiser = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, nesterov=True)
        images, labels = feed(), torch.randint(10, (BATCH,))

        def step() -> None:
            optimiser.zero_grad()
            cross_entropy(network(images).logits, labels).backward()
            optimiser.step()

        taken = interleave({"feed": feed, "pillow": feed_by_pillow, "step": step}, REPEATS)
    for name, times in taken.items():
        print(f"{name:<8} {statistics.median(times) * 1e3:8.2f} ms per batch of {BATCH}")
    print(f"pillow / feed: {ratio(taken, 'pillow', 'feed'):.1f}")
    report("feed / step", ratio(taken, "feed", "step"), 0.03)


if __name__ == "__main__":
    main()
