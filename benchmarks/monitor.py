"""What a monitor adds to a gate: time per batch and memory, at any length of history.

    python benchmarks/monitor.py            two minutes on an idle machine

The gate cifar10-w16, batches of 128 images of 32×32. `Monitor.update` against `Gate.predict` of the
same batch, interleaved, medians of the ratios, after so many images. The history is drawn from the
held-out images' cues with a little noise, so that hardly two scores are equal. Memory is that of
all arrays that grow with the images: scores and counts of the five streams.

The plain properties of the images (`goen.functional.image_properties`) are timed beside them: of
these batches, and of one of 32 images of 224×224 beside EfficientNet-Lite0's pass, if it is
installed.

Goals: 0.02 of the time of `predict`, 0.01 for the properties, and less memory than one float64 per
image and stream.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import goen
from goen.features.loaded_model import LoadedModel
from goen.features.package_networks import is_installed
from goen.functional.image_properties import image_properties
from goen.functional.ranking import Floats
from goen.gate import Gate, Prediction
from goen.monitor.inputs import CLASS, SCORE, held_out_values
from timing import header, interleave, ratio, report

BATCH, REPEATS = 128, 30
LENGTHS = (0, 10_000, 100_000, 1_000_000)


def drawn(
    gate: Gate, count: int, rng: np.random.Generator
) -> tuple[dict[str, Floats], NDArray[np.bool_]]:
    """Images like the held-out ones."""
    held_out = held_out_values(gate)
    rows = rng.integers(0, len(held_out[SCORE]), count)
    values = {
        name: v[rows] if name == CLASS else v[rows] + 0.05 * v.std() * rng.normal(size=count)
        for name, v in held_out.items()
    }
    return values, rng.random(count) < 0.05


def main() -> None:
    header()
    gate = goen.load("cifar10-w16")
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (BATCH, 3, 32, 32), dtype=np.uint8))
    monitor = goen.Monitor(gate)
    prediction: Prediction = gate.predict(images)
    for length in LENGTHS:
        while monitor.images < length:
            monitor.add(*drawn(gate, min(4096, length - monitor.images), rng))
        taken = interleave(
            {
                "predict": lambda: gate.predict(images),
                "update": lambda: monitor.update(prediction),
                "properties": lambda: image_properties(images),
            },
            REPEATS,
        )
        update = float(np.median(taken["update"]))
        predict = float(np.median(taken["predict"]))
        print(
            f"\nafter {length:,} images: update {update * 1e3:.2f} ms, predict {predict * 1e3:.0f}"
        )
        report("update / predict of 128 images", ratio(taken, "update", "predict"), 0.02)
        report("properties / predict of 128 images", ratio(taken, "properties", "predict"), 0.01)
        counts = monitor.streams.counts
        size = sum(part.values.nbytes + part.counts.nbytes for part in counts)
        report_memory(size, monitor.images, len(counts))
        report_saving(monitor)

    report_large_images(rng)


def report_large_images(rng: np.random.Generator) -> None:
    if not is_installed("efficientnet-lite0"):
        return
    network = goen.load_model("pretrained:efficientnet-lite0")
    images = torch.from_numpy(rng.integers(0, 256, (32, 3, 224, 224), dtype=np.uint8))
    taken = interleave(
        {
            "pass": lambda: passed(network, images),
            "properties": lambda: image_properties(images),
        },
        5,
    )
    print(f"\n224×224: properties {np.median(taken['properties']) / 32 * 1e3:.3f} ms an image")
    report("properties / pass of 32 images of 224×224", ratio(taken, "properties", "pass"), 0.01)


@torch.inference_mode()
def passed(network: LoadedModel, images: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = network.model(images.float() / 255)
    return outputs


def report_memory(size: int, images: int, streams: int) -> None:
    allowed = 8 * images * streams
    met = "PASS" if size <= allowed or images < 10_000 else "FAIL"
    goal = f"goal: at most {allowed / 2**20:.3g} MB   {met}"
    print(f"{'memory of scores':<44} {size / 2**20:7.3f} MB   {goal}")


def report_saving(monitor: goen.Monitor) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "monitor.safetensors"
        monitor.save(file)
        times = []
        for _ in range(9):
            start = time.perf_counter()
            monitor.save(file, overwrite=True)
            times.append(time.perf_counter() - start)
        size = file.stat().st_size
        print(f"{'saving':<44} {np.median(times) * 1e3:7.2f} ms, {size / 2**20:.3g} MB")


if __name__ == "__main__":
    main()
