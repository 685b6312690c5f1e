"""``goen demo``: the bundled gate on a few OOD pictures, and then ``goen run``."""

from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image

from goen.cli.options.study import StudyOptions
from goen.cli.options.types import OptionalPath
from goen.cli.output.scores import print_scores, print_sentence
from goen.cli.run import run_command
from goen.data.images.decoding import read_image
from goen.data.imageset import Pixels
from goen.data.sets.embedded import digits, noise
from goen.gate import DEFAULT_GATE, Gate, bundled_folder, load


def demo_command(out: OptionalPath = None) -> int:
    """Score a few OOD pictures with the bundled gate, then train a gate on embedded digits.

    Works offline: the pictures are samples of scikit-learn and Matplotlib. The second part is
    goen run without options: it takes about a minute and writes a report.

    For example: goen demo

    Args:
        out: the folder of the run (default: runs/digits).
    """
    folder = bundled_folder(DEFAULT_GATE)
    if folder is not None:
        show_gate(DEFAULT_GATE, load(folder))
    return run_command(options=StudyOptions(out=out))


def show_gate(name: str, gate: Gate) -> None:
    """The gate's predictions for a few OOD pictures, as a table and two sentences."""
    pictures = ood_pictures(gate.image_size)
    prediction = gate.predict(np.stack(list(pictures.values())))
    print_sentence(
        f"The bundled gate {name} classifies {', '.join(gate.classes)}. None of the pictures below "
        "shows one of these: they are out of distribution (OOD)."
    )
    print()
    rows = zip(pictures, prediction.rows(), strict=True)
    print_scores([{"path": name, **row} for name, row in rows])
    print()
    print_sentence(
        f"{prediction.is_ood.sum()} of {len(prediction)} OOD pictures flagged. Of in-distribution "
        f"pictures it flags at most {gate.false_alarm_rate:.1%} on average: the false-alarm rate. "
        "For your own pictures: goen score PICTURES"
    )
    print()


def ood_pictures(size: tuple[int, int]) -> dict[str, Pixels]:
    """Pictures that need no download, ``(3, H, W)`` each, by their subject."""
    from matplotlib.cbook import get_sample_data

    photographs = resources.files("sklearn.datasets.images")
    files = {
        "temple": photographs / "china.jpg",
        "flower": photographs / "flower.jpg",
        "Grace Hopper": Path(get_sample_data("grace_hopper.jpg", asfileobj=False)),
    }
    # Some distributions package Matplotlib without its samples.
    found = {
        name: read_image(file.read_bytes(), size, name)
        for name, file in files.items()
        if file.is_file()
    }
    rows = [3, 5, 8]  # a three, a five and an eight
    for row, pixels in zip(rows, digits().read(rows), strict=True):
        found[f"digit {digits().classes[digits().labels[row]]}"] = _resized(pixels, size)
    return {
        **found,
        "noise": _resized(noise(1, seed=0, shape=(3, max(size), max(size))).read()[0], size),
    }


def _resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    return read_image(Image.fromarray(pixels.transpose(1, 2, 0)), size)
