"""Export a gate to one ONNX file that runs without goen.

    images     (N, C, H, W) uint8, of any height and width, or uint16 of the gate's size if it was
               fitted on such; of other gates their own inputs
    threshold  () float64, the fitted one unless another is given; (C,) of a gate per class
 →  label (N,) int64, confidence (N,), score (N,), p_value (N,) float64, is_ood (N,) bool,
    cues (N, K), cue_p_values (N, K) and probability (N,) float64, the last two if the gate has them

The file contains the resize of ``goen.read_image``, preprocessing, network, distances and
held-out scores. It is written only after its outputs have been compared with the gate's on real
images.

Another runtime sums float32 in another order, which changes a score slightly. The difference is
measured before the file is written, and scores that close count as equal: an image that ties with a
held-out image (the same image again) gets the gate's decision, and at a tie the file flags nothing
that the gate would not flag.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from goen.batch import Inputs, parts_of
from goen.data.input_spec import ImageInputs, TensorInputs
from goen.data.inputs import Arrays
from goen.errors import ArtifactError, UsageError
from goen.gate.base import BaseGate
from goen.gate.export.comparison import (
    ExportOutputs,
    Runner,
    compare_with_gate,
    input_pairs,
)
from goen.gate.export.conversion import (
    convert,
    open_session,
    require_onnx,
    run_session,
    trace,
)
from goen.gate.export.traceable import (
    TraceableGate,
    input_names,
    output_names,
    takes_8_bit_images,
    tensor_example,
)
from goen.gate.storage.inputs import inputs_manifest
from goen.io.files import whole_file
from goen.io.manifest import JsonObject
from goen.io.provenance import versions
from goen.models.placement import full_precision
from goen.progress import spinner

MADE_BY = "goen"


@full_precision()
def write_onnx(
    gate: BaseGate,
    path: Path | str,
    images: Arrays | None = None,
    *,
    tolerance: float | None = None,
    any_size: bool = True,
    overwrite: bool = False,
) -> None:
    """Write the gate as one ONNX file that runs without goen, compared with the gate first.

    Args:
        path: a ``.onnx`` file.
        images: ``(N, C, H, W)`` of the gate's size and bits to compare on; by default, images
            made up by goen. A gate of other inputs needs some of them, one of features does
            not.
        tolerance: the largest difference allowed between scores, cues, confidences and
            probabilities: absolute up to 1, relative above. By default 1e-4 for confidences and
            probabilities, for scores a thousandth of the interquartile range of the held-out
            scores, at least 1e-5, and for cues a hundredth of their standard deviation, at
            least 1e-4. Decisions must be equal in any case.
        any_size: whether images of 8 bits of any height and width are taken, and resized as
            ``goen.read_image`` does; else only images of the gate's size.
        overwrite: replace the file if it exists.

    Raises:
        UsageError: onnx, onnxscript or onnxruntime is missing, ONNX does not support the model
            or the detector, or something exists at the path.
        ArtifactError: the file's outputs differ from the gate's.
    """
    detector = gate.detector
    if detector.needs_gradient or not detector.saved:
        reason = "takes gradients of the network" if detector.saved else "is not goen's own"
        raise UsageError(f"A gate with {detector} cannot be exported: the detector {reason}.")
    require_onnx("Exporting")
    import onnx

    gate = replace(gate, compiled=None)
    with whole_file(Path(path), overwrite=overwrite) as temporary:
        names = [*input_names(gate), "threshold"]
        model = convert(_trace(gate, any_size), names, output_names(gate))
        _set_inputs(gate, model.graph, onnx.numpy_helper)
        for key, value in export_metadata(gate).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            model.metadata_props.add(key=key, value=text)
        pairs = input_pairs(gate, images, any_size=any_size and takes_8_bit_images(gate))
        (place,) = (part for part in model.graph.initializer if part.name == "tolerance")

        def with_tolerance(found: float) -> Runner:
            place.CopyFrom(onnx.numpy_helper.from_array(np.array(found), "tolerance"))
            onnx.save(model, temporary)
            return _onnx_runner(temporary, gate)

        try:
            with spinner("comparing with the gate"):
                compare_with_gate(gate, with_tolerance, pairs, tolerance)
        except ArtifactError as error:
            raise ArtifactError(f"{error} Nothing was written.") from error


def _onnx_runner(path: Path, gate: BaseGate) -> Runner:
    session = open_session(path)
    given, names = input_names(gate), output_names(gate)

    def run(batch: Inputs) -> ExportOutputs:
        parts = (part.numpy() for part in parts_of(batch).values())
        found = run_session(session, names, dict(zip(given, parts, strict=True)))
        return dict(zip(names, found, strict=True))

    return run


def export_metadata(gate: BaseGate) -> JsonObject:
    """The names of outputs, classes and cues, the rate, the threshold and the versions.

    Of a gate with an error rate also the limits between which images are accepted.
    """
    accepted: JsonObject = {}
    if gate.acceptance is not None:
        above = gate.acceptance.above_confidence
        limits = {
            "below_score": gate.acceptance.below_score,
            "above_confidence": above if np.isfinite(above) else None,
        }
        accepted = {"accepted": limits}
    return {
        **accepted,
        "made_by": MADE_BY,
        "classes": list(gate.classes),
        "outputs": list(output_names(gate)),
        **inputs_manifest(gate.inputs),
        "false_alarm_rate": gate.false_alarm_rate,
        "threshold": gate.threshold_tensor.tolist(),
        "per_class": gate.per_class,
        "held_out_images": len(gate.held_out.scores),
        "cues": list(gate.detector.cue_names),
        "versions": versions(),
    }


def _trace(gate: BaseGate, any_size: bool) -> torch.export.ExportedProgram:
    example, axes = _example(gate, any_size)
    gate.predict(gate.inputs.pattern())  # what is computed once is there, and not left to the trace
    module = TraceableGate(gate, any_size=any_size)
    return trace(module, gate.network, (example, gate.threshold_tensor), (axes, None))


def _example(gate: BaseGate, any_size: bool) -> tuple[Inputs, Any]:
    """Two inputs, and which of their axes may have any length."""
    if isinstance(gate.inputs, TensorInputs):
        return tensor_example(gate.inputs)
    count = torch.export.Dim("count")
    height, width = gate.image_size
    sides = {0: count}
    if any_size and takes_8_bit_images(gate):
        sides |= {2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
        height, width = height + 3, width + 5  # sizes of their own, or they would count as fixed
    dtype = torch.uint8 if gate.inputs.bits == 8 else torch.uint16
    return torch.zeros(2, gate.inputs.channels, height, width, dtype=dtype), sides


def _set_inputs(gate: BaseGate, graph: Any, numpy_helper: Any) -> None:
    """Set the default of the threshold, and name the axes of the inputs."""
    threshold = gate.threshold_tensor.numpy()
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
