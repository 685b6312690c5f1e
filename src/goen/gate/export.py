"""Export a gate to one file that runs without goen: ONNX, or a program of torch.export.

    images     (N, 3, H, W) uint8
    threshold  () float64, the fitted one unless another is given; (C,) of a gate per class
 →  label (N,) int64, confidence (N,), score (N,), p_value (N,) float64, is_ood (N,) bool

The file contains preprocessing, network, distances and held-out scores. It is written only after
its outputs have been compared with the gate's on real images.

Another runtime sums float32 in another order, which changes a score slightly. The difference is
measured before the file is written, and scores that close count as equal: an image that ties with a
held-out image (the same image again) gets the gate's decision, and at a tie the file flags nothing
that the gate would not flag.
"""

import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate

from goen.data import load_set
from goen.errors import ArtifactError, UsageError
from goen.files import Own, whole_file
from goen.gate import Gate, Prediction, concatenate
from goen.models.placement import evaluating, placement
from goen.outputs import Outputs
from goen.progress import spinner
from goen.runs.manifest import JsonObject
from goen.runs.provenance import versions

OUTPUTS = ("label", "confidence", "score", "p_value", "is_ood")
TOLERANCE = 1e-5
_CONFIDENCE_TOLERANCE = 1e-4
_BATCH = 64

MADE_BY = "goen"

ExportOutputs = dict[str, NDArray[Any]]
Runner = Callable[[NDArray[np.uint8]], ExportOutputs]


def _is_program(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("extra/gate.json"))
        return bool(json.loads(archive.read(name))["made_by"] == MADE_BY)


def _is_onnx(path: Path) -> bool:
    import onnx

    properties = onnx.load(path, load_external_data=False).metadata_props
    return any((entry.key, entry.value) == ("made_by", MADE_BY) for entry in properties)


PROGRAM = Own("a program that goen exported", _is_program)
ONNX = Own("an ONNX file that goen exported", _is_onnx)


class TraceableGate(nn.Module):
    """A gate as a traceable module: images and a threshold in, the five outputs out."""

    held_out: Tensor
    held_out_labels: Tensor
    slack: Tensor

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.network = gate.network
        self.detector = gate.detector.traceable()
        self.features = gate.detector.features
        self.per_class = gate.per_class
        self.register_buffer("held_out", torch.from_numpy(gate.held_out.scores.copy()))
        labels = gate.held_out.labels
        # Not empty where there are none: torch.export cannot save an empty tensor.
        kept = np.zeros(1, np.int64) if labels is None else labels.copy()
        self.register_buffer("held_out_labels", torch.from_numpy(kept))
        # Set when it has been measured; not 0, or the ONNX exporter would remove it.
        self.register_buffer("slack", torch.tensor(TOLERANCE, dtype=torch.float64))

    def forward(self, images: Tensor, threshold: Tensor) -> tuple[Tensor, ...]:
        outputs: Outputs = self.network(images)
        score = self.detector(outputs)
        finite = torch.isfinite(score) & torch.isfinite(outputs.logits).all(dim=1)
        for name in self.features:
            finite = finite & torch.isfinite(outputs.features[name]).all(dim=1)
        # As in the gate: what is not finite is flagged, with the least p-value.
        score = torch.where(finite, score, torch.full_like(score, torch.inf))
        logits = torch.where(finite[:, None], outputs.logits.double(), 0.0)
        confidence, label = torch.softmax(logits, dim=1).max(dim=1)
        confidence = torch.where(finite, confidence, torch.zeros_like(confidence))
        lowest = score - self.slack
        above = self.held_out >= lowest[:, None]
        if self.per_class:
            same = self.held_out_labels == label[:, None]
            count = same.to(torch.float64).sum(dim=1)
            at_least = (above & same).to(torch.float64).sum(dim=1)
            limit = threshold[label]
        else:
            count = torch.full_like(score, len(self.held_out))
            at_least = above.to(torch.float64).sum(dim=1)
            limit = threshold
        return label, confidence, score, (1 + at_least) / (count + 1), lowest > limit


def fitted_threshold(gate: Gate) -> Tensor:
    """The default of the input ``threshold``: ``()``, or ``(C,)`` for a gate per class."""
    values = gate.class_thresholds if gate.per_class else np.float64(gate.threshold)
    return torch.as_tensor(values, dtype=torch.float64)


def to_program(
    gate: Gate,
    path: Path | str,
    images: NDArray[np.uint8] | None = None,
    *,
    tolerance: float | None = None,
) -> None:
    """Write the gate as a program of ``torch.export``, compared with the gate first.

    ``torch.export.load(path).module()(images, threshold)`` returns the five outputs; the
    fitted threshold, the classes and the rate are in the extra file ``gate.json``.

    Args:
        gate: fitted.
        path: a ``.pt2`` file.
        images: uint8 ``(N, 3, H, W)`` to compare on; by default, images embedded in goen.
        tolerance: the largest difference allowed between scores, and between confidences:
            absolute up to 1, relative above. By default 1e-4 for confidences, and for scores a
            thousandth of the standard deviation of the held-out scores, at least 1e-5. Decisions
            must be equal in any case.

    Raises:
        UsageError: the model cannot be traced, or something else exists at the path.
        ArtifactError: the program's outputs differ from the gate's.
    """
    with whole_file(Path(path), PROGRAM) as temporary:
        with spinner("tracing the gate"):
            program = _trace(gate)
        images = _real_images(gate, images)
        threshold = fitted_threshold(gate)
        with spinner("comparing with the gate"):
            slack = measure_differences(gate, _torch_runner(program, threshold), images, tolerance)
            program.state_dict["slack"].fill_(slack)
            metadata = {"gate.json": json.dumps(export_metadata(gate))}
            with _quiet(), temporary.open("wb") as file:
                torch.export.save(program, file, extra_files=metadata)
            with temporary.open("rb") as written:
                loaded = torch.export.load(written)
            check_decisions(gate, _torch_runner(loaded, threshold), images, slack)


def _torch_runner(program: torch.export.ExportedProgram, threshold: Tensor) -> Runner:
    module = program.module()

    def run(batch: NDArray[np.uint8]) -> ExportOutputs:
        with torch.no_grad():
            found = module(torch.from_numpy(batch), threshold)
        return {name: value.numpy() for name, value in zip(OUTPUTS, found, strict=True)}

    return run


def to_onnx(
    gate: Gate,
    path: Path | str,
    images: NDArray[np.uint8] | None = None,
    *,
    tolerance: float | None = None,
) -> None:
    """Write the gate as one ONNX file, compared with the gate in onnxruntime first.

    Args:
        gate: fitted.
        path: a ``.onnx`` file.
        images: uint8 ``(N, 3, H, W)`` to compare on; by default, images embedded in goen.
        tolerance: the largest difference allowed between scores, and between confidences:
            absolute up to 1, relative above. By default 1e-4 for confidences, and for scores a
            thousandth of the standard deviation of the held-out scores, at least 1e-5. Decisions
            must be equal in any case.

    Raises:
        UsageError: onnx, onnxscript or onnxruntime is missing, ONNX does not support the model,
            or something else exists at the path.
        ArtifactError: the file's outputs differ from the gate's.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        raise UsageError(f"Exporting needs {error.name}: pip install 'goen[onnx]'.") from error
    with whole_file(Path(path), ONNX) as temporary:
        model = _converted(gate)
        _set_inputs(model.graph, onnx.numpy_helper, fitted_threshold(gate))
        for key, value in export_metadata(gate).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            model.metadata_props.add(key=key, value=text)
        images = _real_images(gate, images)
        with spinner("comparing with the gate"):
            onnx.save(model, temporary)
            slack = measure_differences(
                gate, _onnx_runner(onnxruntime, temporary), images, tolerance
            )
            (place,) = (tensor for tensor in model.graph.initializer if tensor.name == "slack")
            place.CopyFrom(onnx.numpy_helper.from_array(np.array(slack), "slack"))
            onnx.save(model, temporary)
            check_decisions(gate, _onnx_runner(onnxruntime, temporary), images, slack)


def _converted(gate: Gate) -> Any:
    """The gate as ONNX's ``ModelProto``."""
    with spinner("tracing the gate"):
        program = _trace(gate)
    with spinner("converting to ONNX"), _quiet():
        try:
            converted = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images", "threshold"],
                output_names=list(OUTPUTS),
                verbose=False,
            )
        except Exception as error:  # the exporter raises many types of its own
            raise UsageError(
                f"This model cannot be converted to ONNX: {_first_line(error)} Export a program of "
                "torch.export instead (on the command line, --program)."
            ) from error
    assert converted is not None  # dynamo=True returns it
    return converted.model_proto


def _onnx_runner(onnxruntime: Any, path: Path) -> Runner:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise UsageError(
            f"onnxruntime cannot run this model: {_first_line(error)} A model in half precision "
            "must be float32 for that: model.float() before the fit."
        ) from error
    return lambda batch: dict(
        zip(OUTPUTS, session.run(list(OUTPUTS), {"images": batch}), strict=True)
    )


def export_metadata(gate: Gate) -> JsonObject:
    """Classes, rate, threshold and versions, as stored in the file."""
    return {
        "made_by": MADE_BY,
        "classes": list(gate.classes),
        "image_size": list(gate.image_size),
        "false_alarm_rate": gate.false_alarm_rate,
        "threshold": fitted_threshold(gate).tolist(),
        "per_class": gate.per_class,
        "held_out_images": len(gate.held_out.scores),
        "cues": list(gate.detector.cue_names),
        "versions": versions(),
    }


def default_tolerance(gate: Gate) -> float:
    """A thousandth of the standard deviation of the held-out scores, at least 1e-5.

    Another engine adds float32 numbers up in another order. Scores that differ by so little are a
    handful of held-out images apart, and the decisions are compared one by one.
    """
    return max(TOLERANCE, 1e-3 * float(np.std(gate.held_out.scores)))


def measure_differences(
    gate: Gate, run: Runner, images: NDArray[np.uint8], tolerance: float | None = None
) -> float:
    """1.5 times the largest difference between the exported gate's scores and the gate's.

    Raises:
        ArtifactError: scores or confidences differ by more than the tolerance, or labels differ.
    """
    limits = {
        "score": default_tolerance(gate) if tolerance is None else tolerance,
        "confidence": _CONFIDENCE_TOLERANCE if tolerance is None else tolerance,
    }
    expected, found = _both(gate, run, images)
    finite = np.isfinite(expected.score)
    if not np.array_equal(np.isfinite(found["score"]), finite):
        raise ArtifactError(
            "The exported gate's score is finite where the gate's is not, or the other way round. "
            "Nothing was written."
        )
    for name, most in limits.items():
        own = getattr(expected, name)[finite]
        difference = np.abs(found[name][finite] - own) / np.maximum(1, np.abs(own))
        if not (difference <= most).all():
            raise ArtifactError(
                f"The exported gate's {name} differs from the gate's by {difference.max():.2g}, "
                f"more than {most:g}. Nothing was written. Does the model compute in half "
                "precision, or does a layer hardly vary? Make it float32, choose other layers, or "
                "allow a larger tolerance; decisions are compared in any case."
            )
    if not np.array_equal(found["label"], expected.label):
        raise ArtifactError(
            "The exported gate's label differs from the gate's. Nothing was written."
        )
    differences = np.abs(found["score"][finite] - expected.score[finite])
    return 1.5 * float(differences.max(initial=0.0)) + 1e-12


def check_decisions(gate: Gate, run: Runner, images: NDArray[np.uint8], slack: float) -> None:
    """Compare the p-values and decisions of an exported gate with the gate's own.

    Raises:
        ArtifactError: a decision differs, or a p-value by more than ties explain.
    """
    expected, found = _both(gate, run, images)
    # A p-value counts held-out scores; those closer than the slack may count or not.
    low, high = (
        gate.p_values(expected.score + step, expected.label) for step in (2 * slack, -2 * slack)
    )
    if not ((low <= found["p_value"]) & (found["p_value"] <= high)).all():
        raise ArtifactError(
            "The exported gate's p-value differs from the gate's. Nothing was written."
        )
    sure = (low > gate.false_alarm_rate) | (high <= gate.false_alarm_rate)
    if not np.array_equal(found["is_ood"][sure], expected.is_ood[sure]):
        raise ArtifactError(
            "The exported gate's decision differs from the gate's. Nothing was written."
        )


def _both(gate: Gate, run: Runner, images: NDArray[np.uint8]) -> tuple[Prediction, ExportOutputs]:
    """The outputs of both, for one image alone and for batches."""
    parts = [images[:1]] + [images[i : i + _BATCH] for i in range(1, len(images), _BATCH)]
    found = [run(part) for part in parts]
    joined = {name: np.concatenate([outputs[name] for outputs in found]) for name in OUTPUTS}
    return concatenate([gate.predict(part) for part in parts]), joined


def _trace(gate: Gate) -> torch.export.ExportedProgram:
    device, _ = placement(gate.network)
    if device.type != "cpu":
        raise UsageError(f"The gate's model is on {device}: model.cpu() before exporting it.")
    example = torch.zeros(2, 3, *gate.image_size, dtype=torch.uint8)
    with evaluating(gate.network), torch.no_grad(), _quiet():
        try:
            return torch.export.export(
                TraceableGate(gate).eval(),
                (example, fitted_threshold(gate)),
                dynamic_shapes={"images": {0: torch.export.Dim("count")}, "threshold": None},
                strict=False,
            )
        except Exception as error:  # the model's own code may raise anything under tracing
            raise UsageError(
                f"torch.export cannot trace this model: {_first_line(error)} Its forward pass must "
                "not depend on the values of the images or on the size of the batch."
            ) from error


def _set_inputs(graph: Any, numpy_helper: Any, threshold: Tensor) -> None:
    """Set the default of the threshold, and name the batch axis."""
    # An initialiser with an input's name is its default: the input becomes optional.
    graph.initializer.append(numpy_helper.from_array(threshold.numpy(), "threshold"))
    count = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == count:
                dim.dim_param = "N"


def _real_images(gate: Gate, images: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """The images given, else embedded digits and photographs, and noise."""
    if images is not None:
        return images
    sets = [
        load_set("digits").read(range(0, 1700, 17)),
        load_set("photographs").read(range(0, 500, 5)),
    ]
    noise = np.random.default_rng(0).integers(0, 256, (100, 3, 32, 32), dtype=np.uint8)
    small = torch.from_numpy(np.concatenate([*sets, noise])).float()
    sized = interpolate(small, gate.image_size, mode="bilinear", align_corners=False)
    pixels: NDArray[np.uint8] = sized.round().clamp(0, 255).to(torch.uint8).numpy()
    return pixels


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' log messages and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _first_line(error: Exception) -> str:
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line.strip().rstrip(".") + "."
