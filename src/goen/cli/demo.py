"""``goen demo``: the bundled gate on a few OOD pictures, and then ``goen run``."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from goen.cli.options import OptionalPath
from goen.cli.run import run_command
from goen.cli.study import StudyOptions
from goen.cli.terminal import output, visible
from goen.data.embedded import digits, noise
from goen.data.imageset import Pixels
from goen.data.pictures import read_picture
from goen.gate import DEFAULT_GATE, Gate, Prediction, bundled_folder, load


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
    console = output()
    console.print(
        f"The bundled gate {name} classifies {', '.join(gate.classes)}. None of the pictures below "
        "shows one of these: they are out of distribution (OOD).",
        highlight=False,
        markup=False,
    )
    console.print(_table(pictures, prediction))
    console.print(
        f"{prediction.is_ood.sum()} of {len(prediction)} OOD pictures flagged. Of in-distribution "
        f"pictures it flags at most {gate.false_alarm_rate:.1%} on average: the false-alarm rate. "
        "For your own pictures: goen score PICTURES\n",
        highlight=False,
        markup=False,
    )


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
        name: read_picture(file.read_bytes(), size, name)
        for name, file in files.items()
        if file.is_file()
    }
    rows = [3, 5, 8]  # a three, a five and an eight
    for row, pixels in zip(rows, digits().read(rows), strict=True):
        found[f"digit {digits().classes[digits().labels[row]]}"] = _resized(pixels, size)
    return {**found, "noise": _resized(noise(1, seed=0, side=max(size)).read()[0], size)}


def _resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    picture = Image.fromarray(pixels.transpose(1, 2, 0))
    return np.asarray(picture.resize(size[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def _table(names: Mapping[str, Pixels], prediction: Prediction) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("picture", no_wrap=True)
    table.add_column("classifier", no_wrap=True)
    table.add_column("p-value", justify="right", no_wrap=True)
    table.add_column("decision", no_wrap=True)
    table.add_column("why")
    for row, name in enumerate(names):
        label = prediction.classes[prediction.label[row]]
        table.add_row(
            name,
            f"{escape(visible(label))}, {prediction.confidence[row]:.0%}",
            f"{prediction.p_value[row]:.2g}",
            "flagged" if prediction.is_ood[row] else "passed",
            escape(most_unusual_cue(prediction, row)),
        )
    return table


def most_unusual_cue(prediction: Prediction, row: int) -> str:
    """The cue or cues with the smallest p-value; all cues if they have no p-values."""
    values = {name: float(p[row]) for name, p in prediction.cue_p_values.items()}
    if not values:
        return prediction.explain(row)
    least = min(values.values())
    names = ", ".join(name for name, p in values.items() if p == least)
    return f"{names}: p = {least:.2g}"
