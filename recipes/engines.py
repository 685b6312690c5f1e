"""Engines of the bundled gate on real images: speed, decisions and AUROC, also quantised to 8 bits.

    GOEN_DATA=folder python recipes/engines.py     ten minutes; makes the table of docs/deploy.md

CIFAR-10, SVHN and CIFAR-100, 5,000 test images of each. The quantised networks are onnxruntime's
own work, with 200 training images of CIFAR-10 for the static one; only convolutions are quantised.
The network is quantised without its flip averaging, which shares weights that the tool confuses.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

import goen
from goen.data import ImageSet, load_set
from goen.gate import Gate, Prediction
from goen.gate.engine import CompiledNetwork, _example, _PlainNetwork
from goen.gate.export.conversion import convert, open_session, trace
from goen.metrics import ood_metrics
from goen.models.flip_averaging import FlipAveraged

COUNT, BATCH, CALIBRATION = 5000, 64, 200


class Flipped:
    """A session whose outputs are averaged over each image and its mirror image."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def run(self, names: None, given: dict[str, NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        mirrored = {"images": np.ascontiguousarray(given["images"][..., ::-1])}
        both = zip(self.session.run(names, given), self.session.run(names, mirrored), strict=True)
        return [(one + other) / 2 for one, other in both]


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Training images in batches."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        parts = (images[start : start + 50] for start in range(0, len(images), 50))
        self.batches: Iterator[NDArray[np.uint8]] = iter(parts)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"images": batch.astype(np.float32) / 255}


def quantised(gate: Gate, images: NDArray[np.uint8], folder: Path) -> dict[str, Gate]:
    """The gate with each quantised network."""
    assert isinstance(gate.network, FlipAveraged)
    inner = replace(gate, network=gate.network.network)
    example, axes = _example(inner)
    program = trace(_PlainNetwork(inner), inner.network, (example,), (axes,))
    features = [f"feature_{number}" for number in range(len(gate.detector.features))]
    plain, ready = folder / "plain.onnx", folder / "ready.onnx"
    onnx.save(convert(program, ["images"], ["logits", *features]), plain)
    quant_pre_process(plain, ready, skip_symbolic_shape=True)
    model = onnx.load(ready)
    del model.graph.value_info[:]  # shapes that the tool no longer agrees with
    onnx.save(model, ready)
    settings: dict[str, Any] = {
        "op_types_to_quantize": ["Conv"],
        "extra_options": {"DefaultTensorType": onnx.TensorProto.FLOAT},
    }
    unsigned = QuantType.QUInt8
    quantize_dynamic(ready, folder / "dynamic.onnx", weight_type=unsigned, **settings)
    # Unsigned maps with signed weights: what has a fast kernel with AVX2.
    settings |= {"activation_type": unsigned, "weight_type": QuantType.QInt8, "per_channel": True}
    quantize_static(ready, folder / "static.onnx", Reader(images), **settings)

    def with_network(name: str) -> Gate:
        session = open_session(folder / f"{name}.onnx", torch.get_num_threads())
        return replace(gate, compiled=CompiledNetwork(Flipped(session), gate))

    return {f"int8, {name}": with_network(name) for name in ("static", "dynamic")}


def images_per_second(gate: Gate, images: NDArray[np.uint8]) -> float:
    """Of processor time, which other work on the machine hardly changes."""
    taken = []
    for _ in range(6):
        start = time.process_time()
        gate.predict(images)
        taken.append(time.process_time() - start)
    return len(images) / float(np.median(taken[1:]))


def evenly(name: str) -> ImageSet:
    found = load_set(name, "test")
    step = len(found) // COUNT
    return found.take(range(0, step * COUNT, step))


def main() -> None:
    torch.set_num_threads(1)
    gate = goen.load("cifar10-w16")
    sets = {name: evenly(name) for name in ("cifar10", "svhn", "cifar100")}
    train = load_set("cifar10", "train").read(range(0, 50_000, 50_000 // CALIBRATION))
    gates = {"torch": gate, "onnxruntime": gate.with_engine("onnxruntime")}
    with tempfile.TemporaryDirectory() as folder:
        gates |= quantised(gate, train, Path(folder))
        expected: dict[str, Prediction] = {}
        for engine, one in gates.items():
            found = {name: one.predict(images, batch_size=BATCH) for name, images in sets.items()}
            expected = expected or found
            right = found["cifar10"].label == sets["cifar10"].labels
            print(f"{engine}: {images_per_second(one, train[:BATCH]):.0f} images/s, ", end="")
            print(f"accuracy {right.mean():.4f}")
            for name, prediction in found.items():
                torchs = expected[name]
                line = f"  {name}: decisions {(prediction.is_ood == torchs.is_ood).sum():,}, "
                line += f"labels {(prediction.label == torchs.label).sum():,} of {COUNT:,}; "
                line += f"scores to {np.abs(prediction.score - torchs.score).max():.2g}, "
                line += f"p-values to {np.abs(prediction.p_value - torchs.p_value).max():.2g}"
                if name != "cifar10":
                    auroc = ood_metrics(found["cifar10"].score, prediction.score).auroc
                    line += f"; AUROC {auroc:.4f}"
                print(line)


if __name__ == "__main__":
    main()
