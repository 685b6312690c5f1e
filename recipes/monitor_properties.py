"""The monitor's plain properties: python recipes/monitor_properties.py --data-dir DATA

CIFAR-10's test images in random orders through the bundled gate cifar10-w16, to whose held-out
images their properties are added. From image 2,000 on the images get darker, blurred, or lose
colour or contrast. `goen.Monitor` with the properties and without them, on the same orders; and
false alarms, where held-out images and stream are drawn from the test images alike, so that nothing
has changed. Writes results/monitor/properties.jsonl and docs/pictures/monitor-properties.png.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import tyro
from matplotlib import pyplot as plt
from monitor_cifar10 import (
    CHANGE,
    Alarm,
    Draw,
    Floats,
    Line,
    Scores,
    joined,
    line,
    mixed,
    monitored,
    rows_of,
)
from numpy.typing import NDArray
from paired import read_lines
from safetensors.numpy import load_file, save_file
from scipy.ndimage import gaussian_filter
from scipy.stats import binomtest

import goen
from goen.data import ImageSet, protocol
from goen.functional.image_properties import image_properties, property_names
from goen.gate import Gate, HeldOut
from goen.io.provenance import hardware, versions
from goen.io.stages import Stages
from goen.monitor import Monitor
from goen.monitor.inputs import CLASS, SCORE, property_stream
from goen.report.table import Cell, Row, Table

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "monitor" / "properties.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "monitor-properties.png"
TESTED = 7000  # of the test images, the last
CHANGED = 1500  # of these the last, in every form
FADING = (0.95, 0.9, 0.85, 0.8, 0.75)
WITH, WITHOUT = "with the properties", "score, cues and class alone"
HELD_OUT, LENGTH = 500, 2000  # of a stream in which nothing changes


def forms() -> dict[str, Callable[[NDArray[np.uint8]], Floats]]:
    """What is done to images ``(N, C, H, W)``, by name."""

    def grey(pixels: NDArray[np.uint8]) -> Floats:
        return np.asarray(pixels.mean(axis=1, keepdims=True))

    def centre(pixels: NDArray[np.uint8]) -> Floats:
        return np.asarray(pixels.mean(axis=(1, 2, 3), keepdims=True))

    dark: dict[str, Callable[[NDArray[np.uint8]], Floats]] = {
        f"{factor:g} of the brightness": lambda pixels, factor=factor: factor * pixels
        for factor in FADING
    }
    return dark | {
        "slightly blurred": lambda p: gaussian_filter(p.astype(float), (0, 0, 0.5, 0.5)),
        "half of the colour": lambda p: 0.5 * p + 0.5 * grey(p),
        "0.8 of the contrast": lambda p: 0.8 * p + 0.2 * centre(p),
    }


def scored(gate: Gate, images: ImageSet, stages: Stages) -> dict[str, Floats]:
    """The numbers that a monitor follows, of each image."""

    def make(result: Path, _: Path) -> None:
        found = gate.predict(images)
        arrays = {SCORE: found.score, **found.cues, CLASS: found.label}
        arrays |= {property_stream(name): values for name, values in found.properties.items()}
        save_file({k: np.ascontiguousarray(v, np.float64) for k, v in arrays.items()},
                  result / "scores.safetensors")  # fmt: skip

    inputs = {"gate": str(gate.metadata["network"]), "images": images.fingerprint, "revision": 1}
    found = stages.run("monitor-properties", inputs, make, about=images.name)
    return load_file(found / "scores.safetensors")


def with_properties(gate: Gate, held_out: ImageSet) -> Gate:
    """The gate with the properties of its held-out images, as a gate fitted today has them."""
    found = gate.predict(held_out)
    threshold = HeldOut(
        found.score,
        found.label,
        np.stack([*found.cues.values()], axis=1),
        properties=image_properties(torch.from_numpy(held_out.read())).numpy(),
    )
    return replace(gate, held_out=threshold)


def changes(scores: dict[str, Scores]) -> dict[str, Draw]:
    """A stream for a random order, by the name of its change."""
    test = scores["test"]
    count = len(test[SCORE])

    def before(rng: np.random.Generator) -> Scores:
        return rows_of(test, rng.permutation(count - CHANGED)[:CHANGE])

    def at_once(name: str) -> Draw:
        return lambda rng: joined(before(rng), rows_of(scores[name], rng.permutation(CHANGED)))

    def fading(rng: np.random.Generator) -> dict[str, Floats]:
        parts = rng.permutation(CHANGED).reshape(len(FADING), -1)
        after = [
            rows_of(scores[f"{factor:g} of the brightness"], rows)
            for factor, rows in zip(FADING, parts, strict=True)
        ]
        return joined(before(rng), *after)

    def nothing(rng: np.random.Generator) -> dict[str, Floats]:
        return rows_of(test, rng.permutation(count)[: CHANGE + CHANGED])

    known = ("0.9 of the brightness", "0.8 of the brightness", *list(forms())[len(FADING) :])
    found: dict[str, Draw] = {"nothing": nothing}
    found |= {name: at_once(name) for name in known}
    found["darker by 0.05 every 300 images"] = fading
    return found | {"20% svhn": mixed(scores, "svhn", 0.2, CHANGED)}


def false_alarms(gate: Gate, test: Scores, repetitions: int) -> list[dict[str, object]]:
    """Held-out images and stream drawn from the test images: exchangeable for certain."""
    weights = {stream.name: stream.weight for stream in Monitor(gate).streams.streams}
    tops = []
    for seed in range(repetitions):
        order = np.random.default_rng([7, seed]).permutation(len(test[SCORE]))
        stream = rows_of(test, order[: HELD_OUT + LENGTH])
        monitor = Monitor.from_scores({n: stream[n][:HELD_OUT] for n in weights}, seed=seed)
        later = {n: stream[n][HELD_OUT:] for n in weights}
        reached = monitor.add(later).batch.log_e_value.max(axis=0)
        own = [one.weight for one in monitor.streams.streams]
        tops.append((reached - np.log(own) + np.log([*weights.values()])).max())
    found = []
    for rate in (0.01, 0.05):
        alarms = int((np.array(tops) >= -np.log(rate)).sum())
        low, high = binomtest(alarms, repetitions).proportion_ci()
        found.append(
            {"rate": rate, "streams": len(weights), "repetitions": repetitions, "alarms": alarms,
             "share": alarms / repetitions, "low": low, "high": high, "held_out": HELD_OUT,
             "images": LENGTH}
        )  # fmt: skip
    return found


# -- the page --------------------------------------------------------------------------------


def tables(file: Path = OUT) -> dict[str, Table]:
    """The tables of docs/monitor.md."""
    entries = read_lines(file)
    found = [Line(**entry) for entry in entries if "detector" in entry]
    by_key = {(one.change, one.detector): one for one in found}

    def cell(one: Line) -> Cell:
        if one.change == "nothing":
            return Cell(text=f"{one.early} of {one.orders} false alarms")
        delay = "–" if one.delay is None else f"{one.delay:,.0f}"
        first = f"; {one.first}" if one.first and one.share >= 0.5 else ""
        return Cell(text=f"{one.share:.0%} ({delay}){first}")

    rows = tuple(
        Row(change, tuple(cell(by_key[change, detector]) for detector in (WITH, WITHOUT)))
        for change in dict.fromkeys(one.change for one in found)
    )
    orders = max(one.orders for one in found)
    notes = (
        f"{orders} orders of each change. Share of the orders in which it was found within "
        f"{CHANGED:,} images, the median number of images from the change to the alarm, and the "
        "stream that raised most alarms.",
    )
    title = "CIFAR-10 through the gate cifar10-w16, images that change at image 2,000"
    table = Table("monitor-properties", title, (WITH, WITHOUT), rows, notes)
    null = [entry for entry in entries if "repetitions" in entry]
    cells = tuple(Cell(e["share"], ".2%", low=e["low"], high=e["high"]) for e in null)
    first = null[0]
    title = (
        f"Share of {first['repetitions']:,} streams without a change that raised an alarm, "
        f"{first['streams']} streams of numbers each"
    )
    row = Row(f"{first['held_out']:,} held-out images, {first['images']:,} images", cells)
    columns = tuple(f"guaranteed: {e['rate']:.0%}" for e in null)
    quiet = Table("monitor-properties-null", title, columns, (row,))
    return {table.name: table, quiet.name: quiet}


def draw_picture(gate: Gate, stream: Scores) -> None:
    """Brightness and log e-values of one stream that fades."""
    monitor = Monitor(gate, 0.01)
    names = monitor.streams.names
    state = monitor.add({name: stream[name] for name in names})
    brightness = stream[property_stream("brightness")]
    mean = np.convolve(brightness, np.ones(100) / 100, "valid")
    figure, (top, bottom) = plt.subplots(2, figsize=(7.2, 4.6), sharex=True, layout="constrained")
    top.plot(np.arange(100, len(brightness) + 1), mean, color="#0072b2")
    top.set(ylabel="brightness, mean of 100")
    for number, name in enumerate(names):
        is_brightness = name == property_stream("brightness")
        bottom.plot(
            state.batch.log_e_value[:, number].clip(-8, 15),
            color="#d55e00" if is_brightness else "#999999",
            linewidth=1.8 if is_brightness else 0.8,
            zorder=2 + is_brightness,
            label={1: "image brightness", 0: "other streams" if number == 0 else None}[
                is_brightness
            ],
        )
    bottom.axhline(monitor.guarantee.alarm_line, color="#333333", linewidth=1)
    bottom.set(ylabel="log e-value", xlabel="image")
    for axes in (top, bottom):
        axes.axvline(CHANGE, color="#999999", linestyle="--", linewidth=1)
    bottom.legend(frameon=False, loc="upper left")
    figure.savefig(PICTURE, dpi=110)
    print(state)


def found_in(gate: Gate, streams: Sequence[Scores], *, properties: bool) -> list[Alarm]:
    return [
        monitored(Monitor(gate, 0.01, seed, properties=properties), stream)
        for seed, stream in enumerate(streams)
    ]


def main(
    data_dir: Path | None = None,
    orders: int = 40,
    repetitions: int = 1000,
    stages: Path = Path("runs/stages"),
) -> None:
    """Score, draw orders, compare and write.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        orders: random orders of each change.
        repetitions: streams without a change, for the false alarms.
        stages: where finished work is kept.
    """
    torch.set_num_threads(1)
    p = protocol("cifar10", data_dir=data_dir, download=True)
    gate, kept = with_properties(goen.load("cifar10-w16"), p.held_out), Stages(stages)
    assert gate.property_names == property_names(3)
    test = p.test.take(np.arange(len(p.test) - TESTED, len(p.test)))
    last = test.take(np.arange(TESTED - CHANGED, TESTED))
    svhn = p.evaluation["svhn"].images
    scores = {
        "test": scored(gate, test, kept),
        "svhn": scored(gate, svhn.take(np.arange(600)), kept),
    }
    for name, form in forms().items():
        pixels = form(last.read()).round().clip(0, 255).astype(np.uint8)
        changed = ImageSet(name.replace(" ", "-"), pixels, last.labels, last.classes)
        scores[name] = scored(gate, changed, kept)
    lines = []
    drawn = changes(scores)
    for number, (change, draw) in enumerate(drawn.items()):
        streams = [draw(np.random.default_rng([number, seed])) for seed in range(orders)]
        for detector, properties in ((WITH, True), (WITHOUT, False)):
            found = found_in(gate, streams, properties=properties)
            lines.append(line(change, detector, found))
            print(lines[-1], flush=True)
    draw_picture(gate, drawn["darker by 0.05 every 300 images"](np.random.default_rng(0)))
    null = false_alarms(gate, scores["test"], repetitions)
    print(null)
    config = {"orders": orders, "repetitions": repetitions}
    made = {"versions": versions(), "hardware": hardware(), "config": config}
    text = "".join(json.dumps(entry) + "\n" for entry in [made, *map(asdict, lines), *null])
    OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
