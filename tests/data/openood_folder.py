"""A small data folder of the shape of OpenOOD's: its lists, folders and names."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# By set: the size of its images, (width, height).
SIZES = {"mnist": (28, 28), "texture": (90, 60), "places365": (40, 64), "tin": (64, 64)}


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    """Noise around a brightness of its own."""
    rng = np.random.default_rng(seed)
    base = rng.integers(40, 200)
    pixels = (base + rng.integers(-40, 55, (size[1], size[0], 3))).astype(np.uint8)
    return Image.fromarray(pixels)


def write_openood(root: Path, each: int = 3) -> Path:
    """CIFAR-10's benchmark with few images in each list; the paths in it are those of OpenOOD."""
    seed = 0

    def write(kind: str, name: str, labels: list[int]) -> None:
        nonlocal seed
        lines = []
        for number, label in enumerate(labels):
            seed += 1
            place = CLASSES[label] if label >= 0 else "x"
            split = {"val": "test"}.get(kind, kind)
            path = f"{name}/{split}/{place}/{kind}{number:04}.png"
            file = root / "images_classic" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            image = picture(seed, SIZES.get(name, (32, 32)))
            (image.convert("L") if name == "mnist" else image).save(file)
            lines.append(f"{path} {label}" + " " * (number == 0))  # a trailing space occurs
        lists = root / "benchmark_imglist" / "cifar10"
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f"{kind}_{name}.txt").write_text("\n".join(lines) + "\n")

    for kind, count in (("train", 4 * each), ("val", 10 * each), ("test", each)):
        write(kind, "cifar10", list(range(10)) * count)
    write("test", "cifar10c", list(range(10)) * each)
    write("val", "tin", [-1] * 4 * each)
    for name in ("cifar100", "tin", "mnist", "svhn", "texture", "places365"):
        write("test", name, [-1] * 8 * each)
    return root
