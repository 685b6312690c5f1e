"""``goen demo``: the gate in the box on pictures that are at hand, and then ``goen run``."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import tyro
from PIL import Image
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from goen.cli.options import OptionalPath
from goen.cli.run import main_job
from goen.cli.study import Place
from goen.data.embedded import digits, noise
from goen.data.imageset import Pixels
from goen.data.pictures import read_picture
from goen.progress import output
from goen.scoring import DEFAULT_GATE, Gate, Prediction, load, shipped_folder


def main(argv: Sequence[str]) -> int:
    """Parse and run."""
    code: int = tyro.cli(demo, prog="goen demo", args=list(argv))
    return code


def demo(out: OptionalPath = None) -> int:
    """Show the gate in the box a few strangers, then train and evaluate one on embedded digits.

    Nothing is downloaded: the pictures come with scikit-learn and Matplotlib. The second part is
    goen run, with its report.

    For example: goen demo

    Args:
        out: the folder of the run (default runs/digits).
    """
    folder = shipped_folder(DEFAULT_GATE)
    if folder is not None:
        show(DEFAULT_GATE, load(folder))
    return main_job(place=Place(out=out))


def show(name: str, gate: Gate) -> None:
    """What the gate says of the strangers, as a table and two sentences."""
    pictures = strangers(gate.image_size)
    prediction = gate.predict(np.stack(list(pictures.values())))
    console = output()
    console.print(
        f"The gate in the box, {name}, knows {', '.join(gate.classes)}. Every picture below is a "
        "stranger to it: it shows none of these.",
        highlight=False,
        markup=False,
    )
    console.print(_table(pictures, prediction))
    console.print(
        f"{prediction.is_ood.sum()} of {len(prediction)} strangers flagged. Of pictures like those "
        f"it was fitted on it flags at most {gate.false_alarm_rate:.1%} on average: the "
        "false-alarm rate. Yours: goen score PICTURES\n",
        highlight=False,
        markup=False,
    )


def strangers(size: tuple[int, int]) -> dict[str, Pixels]:
    """Pictures that need no download, ``(3, H, W)`` each, by what they show."""
    from matplotlib.cbook import get_sample_data

    photographs = resources.files("sklearn.datasets.images")
    files = {
        "temple": photographs / "china.jpg",
        "flower": photographs / "flower.jpg",
        "Grace Hopper": Path(get_sample_data("grace_hopper.jpg", asfileobj=False)),
    }
    # Some systems package Matplotlib without its samples.
    found = {
        name: read_picture(file.read_bytes(), size, name)
        for name, file in files.items()
        if file.is_file()
    }
    rows = [3, 5, 8]  # of the set: a three, a five and an eight
    for row, pixels in zip(rows, digits().read(rows), strict=True):
        found[f"digit {digits().classes[digits().labels[row]]}"] = _resized(pixels, size)
    return {**found, "noise": _resized(noise(1, seed=0, side=max(size)).read()[0], size)}


def _resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    picture = Image.fromarray(pixels.transpose(1, 2, 0))
    return np.asarray(picture.resize(size[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def _table(names: Mapping[str, Pixels], prediction: Prediction) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("picture", no_wrap=True)
    table.add_column("classifier says", no_wrap=True)
    table.add_column("p-value", justify="right", no_wrap=True)
    table.add_column("decision", no_wrap=True)
    table.add_column("why")
    for row, name in enumerate(names):
        label = prediction.classes[prediction.label[row]]
        table.add_row(
            name,
            f"{escape(label)}, {prediction.confidence[row]:.0%}",
            f"{prediction.p_value[row]:.2g}",
            "flagged" if prediction.is_ood[row] else "passed",
            escape(loudest(prediction, row)),
        )
    return table


def loudest(prediction: Prediction, row: int) -> str:
    """The cue, or the cues, with the smallest p-value; all of them if they have none."""
    values = {name: float(p[row]) for name, p in prediction.cue_p_values.items()}
    if not values:
        return prediction.explain(row)
    least = min(values.values())
    names = ", ".join(name for name, p in values.items() if p == least)
    return f"{names}: p = {least:.2g}"
