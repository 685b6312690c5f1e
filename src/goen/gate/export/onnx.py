"""Export a gate to one file that runs without goen: ONNX, or a program of torch.export.

    images     (N, C, H, W) uint8, of any height and width, or uint16 of the gate's size if it was
               fitted on such; of other gates their own inputs
    threshold  () float64, the fitted one unless another is given; (C,) of a gate per class
 →  label (N,) int64, confidence (N,), score (N,), p_value (N,) float64, is_ood (N,) bool,
    cues (N, K), cue_p_values (N, K) and probability (N,) float64, the last two if the gate has them

The file contains the resize of ``goen.read_picture``, preprocessing, network, distances and
held-out scores. It is written only after its outputs have been compared with the gate's on real
images.

Another runtime sums float32 in another order, which changes a score slightly. The difference is
measured before the file is written, and scores that close count as equal: an image that ties with a
held-out image (the same image again) gets the gate's decision, and at a tie the file flags nothing
that the gate would not flag.
"""

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from goen.batch import Inputs, parts_of
from goen.data.inputs import Arrays
from goen.data.kinds import ImageInputs, TensorInputs
from goen.errors import ArtifactError
from goen.files import Own, whole_file
from goen.gate._inputs import inputs_manifest
from goen.gate._onnx import (
    convert,
    open_session,
    quiet_exporters,
    require_onnx,
    run_session,
    trace,
)
from goen.gate.compare_export import (
    ExportOutputs,
    Runner,
    check_decisions,
    input_pairs,
    measure_differences,
)
from goen.gate.gate import Gate
from goen.gate.traceable import (
    TraceableGate,
    fitted_threshold,
    input_names,
    output_names,
    takes_pictures,
    tensor_example,
)
from goen.progress import spinner
from goen.runs.manifest import JsonObject
from goen.runs.provenance import versions

MADE_BY = "goen"


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


def to_program(
    gate: Gate,
    path: Path | str,
    images: Arrays | None = None,
    *,
    tolerance: float | None = None,
    any_size: bool = True,
) -> None:
    """Write the gate as a program of ``torch.export``, compared with the gate first.

    ``torch.export.load(path).module()(images, threshold)`` returns the outputs; their names, the
    fitted threshold, the classes and the rate are in the extra file ``gate.json``.

    Args:
        gate: fitted.
        path: a ``.pt2`` file.
        images: ``(N, C, H, W)`` of the gate's size and bits to compare on; by default, images made
            up by goen. A gate of other inputs needs some of them, one of features does not.
        tolerance: the largest difference allowed between scores, cues, confidences and
            probabilities: absolute up to 1, relative above. By default 1e-4 for confidences and
            probabilities, for scores a thousandth of the interquartile range of the held-out
            scores, at least 1e-5, and for cues a hundredth of their standard deviation, at least
            1e-4. Decisions must be equal in any case.
        any_size: whether images of 8 bits of any height and width are taken, and resized as
            ``goen.read_picture`` does; else only images of the gate's size.

    Raises:
        UsageError: the model cannot be traced, or something else exists at the path.
        ArtifactError: the program's outputs differ from the gate's.
    """
    gate = gate.with_engine("torch")
    with whole_file(Path(path), PROGRAM) as temporary, _nothing_written():
        program = _trace(gate, any_size)
        pairs = input_pairs(gate, images, any_size=any_size and takes_pictures(gate))
        with spinner("comparing with the gate"):
            slack = measure_differences(gate, _torch_runner(gate, program), pairs, tolerance)
            program.state_dict["slack"].fill_(slack)
            metadata = {"gate.json": json.dumps(export_metadata(gate))}
            # Not straight to the file: where the disk is full, torch ends the whole process.
            written = io.BytesIO()
            with quiet_exporters():
                torch.export.save(program, written, extra_files=metadata)
            temporary.write_bytes(written.getbuffer())
            with temporary.open("rb") as file:
                loaded = torch.export.load(file)
            check_decisions(gate, _torch_runner(gate, loaded), pairs, slack)


@contextmanager
def _nothing_written() -> Iterator[None]:
    """Add to an error of the comparison what became of the file."""
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(f"{error} Nothing was written.") from error


def _torch_runner(gate: Gate, program: torch.export.ExportedProgram) -> Runner:
    module, names, threshold = program.module(), output_names(gate), fitted_threshold(gate)

    def run(batch: Inputs) -> ExportOutputs:
        with torch.no_grad():
            found = module(batch, threshold)
        return {name: value.numpy() for name, value in zip(names, found, strict=True)}

    return run


def to_onnx(
    gate: Gate,
    path: Path | str,
    images: Arrays | None = None,
    *,
    tolerance: float | None = None,
    any_size: bool = True,
) -> None:
    """Write the gate as one ONNX file, compared with the gate in onnxruntime first.

    Args:
        gate: fitted.
        path: a ``.onnx`` file.
        images: ``(N, C, H, W)`` of the gate's size and bits to compare on; by default, images made
            up by goen. A gate of other inputs needs some of them, one of features does not.
        tolerance: the largest difference allowed between scores, cues, confidences and
            probabilities: absolute up to 1, relative above. By default 1e-4 for confidences and
            probabilities, for scores a thousandth of the interquartile range of the held-out
            scores, at least 1e-5, and for cues a hundredth of their standard deviation, at least
            1e-4. Decisions must be equal in any case.
        any_size: whether images of 8 bits of any height and width are taken, and resized as
            ``goen.read_picture`` does; else only images of the gate's size.

    Raises:
        UsageError: onnx, onnxscript or onnxruntime is missing, ONNX does not support the model,
            or something else exists at the path.
        ArtifactError: the file's outputs differ from the gate's.
    """
    require_onnx("Exporting")
    import onnx

    gate = gate.with_engine("torch")
    with whole_file(Path(path), ONNX) as temporary, _nothing_written():
        names = [*input_names(gate), "threshold"]
        model = convert(_trace(gate, any_size), names, output_names(gate))
        _set_inputs(gate, model.graph, onnx.numpy_helper)
        for key, value in export_metadata(gate).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            model.metadata_props.add(key=key, value=text)
        pairs = input_pairs(gate, images, any_size=any_size and takes_pictures(gate))
        with spinner("comparing with the gate"):
            onnx.save(model, temporary)
            run = _onnx_runner(temporary, gate)
            slack = measure_differences(gate, run, pairs, tolerance)
            (place,) = (tensor for tensor in model.graph.initializer if tensor.name == "slack")
            place.CopyFrom(onnx.numpy_helper.from_array(np.array(slack), "slack"))
            onnx.save(model, temporary)
            run = _onnx_runner(temporary, gate)
            check_decisions(gate, run, pairs, slack)


def _onnx_runner(path: Path, gate: Gate) -> Runner:
    session = open_session(path)
    given, names = input_names(gate), output_names(gate)

    def run(batch: Inputs) -> ExportOutputs:
        parts = (part.numpy() for part in parts_of(batch).values())
        found = run_session(session, names, dict(zip(given, parts, strict=True)))
        return dict(zip(names, found, strict=True))

    return run


def export_metadata(gate: Gate) -> JsonObject:
    """The names of outputs, classes and cues, the rate, the threshold and the versions."""
    return {
        "made_by": MADE_BY,
        "classes": list(gate.classes),
        "outputs": list(output_names(gate)),
        **inputs_manifest(gate.inputs),
        "false_alarm_rate": gate.false_alarm_rate,
        "threshold": fitted_threshold(gate).tolist(),
        "per_class": gate.per_class,
        "held_out_images": len(gate.held_out.scores),
        "cues": list(gate.detector.cue_names),
        "versions": versions(),
    }


def _trace(gate: Gate, any_size: bool) -> torch.export.ExportedProgram:
    example, axes = _example(gate, any_size)
    module = TraceableGate(gate, any_size=any_size)
    return trace(module, gate.network, (example, fitted_threshold(gate)), (axes, None))


def _example(gate: Gate, any_size: bool) -> tuple[Inputs, Any]:
    """Two inputs, and which of their axes may have any length."""
    if isinstance(gate.inputs, TensorInputs):
        return tensor_example(gate.inputs)
    count = torch.export.Dim("count")
    height, width = gate.image_size
    sides = {0: count}
    if any_size and takes_pictures(gate):
        sides |= {2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
        height, width = height + 3, width + 5  # sizes of their own, or they would count as fixed
    dtype = torch.uint8 if gate.inputs.bits == 8 else torch.uint16
    return torch.zeros(2, gate.inputs.channels, height, width, dtype=dtype), sides


def _set_inputs(gate: Gate, graph: Any, numpy_helper: Any) -> None:
    """Set the default of the threshold, and name the axes of the inputs."""
    threshold = fitted_threshold(gate).numpy()
    # An initialiser with an input's name is its default: the input becomes optional.
    graph.initializer.append(numpy_helper.from_array(threshold, "threshold"))
    known = ("N", "channels", "height", "width") if isinstance(gate.inputs, ImageInputs) else ("N",)
    axes = graph.input[0].type.tensor_type.shape.dim
    names = {axis.dim_param: name for axis, name in zip(axes, known, strict=False)}
    names.pop("", None)  # axes of a fixed length
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]
