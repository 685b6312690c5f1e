"""Small folders of images, for tests of protocols."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_images(
    folder: Path, count: int, seed: int = 0, side: int = 8, ending: str = "png"
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}-{number}.{ending}")


def write_classes(folder: Path, counts: dict[str, int], seed: int = 0, side: int = 8) -> Path:
    for number, (name, count) in enumerate(counts.items()):
        write_images(folder / name, count, seed * 100 + number, side)
    return folder
