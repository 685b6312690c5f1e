"""The Open Inference Protocol, version 2, over HTTP: tensors as JSON and as binary data.

The input and the outputs of a gate have the names, types and shapes of its exported ONNX file, so
a client can move between goen and a server that runs that file.

Specification: https://github.com/kserve/open-inference-protocol, and Triton's extension for binary
data.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from goen.data.images.pixel_format import PixelFormat, Pixels
from goen.data.images.resizing import resize_image
from goen.errors import DataCorrupt, quoted
from goen.gate import Gate, Prediction, concatenate
from goen.gate.export.comparison import as_outputs
from goen.gate.export.traceable import output_names
from goen.io.json_files import parse_object
from goen.io.limits import JSON_BYTES
from goen.io.manifest import JsonObject, JsonValue, Manifest
from goen.serve.rejection import Rejected
from goen.serve.settings import Limits

HEADER_LENGTH = "inference-header-content-length"
VERSION = "1"
_IMAGES, _THRESHOLD = "images", "threshold"
_TYPES = {"label": "INT64", "is_ood": "BOOL"}
_NUMPY = {"INT64": "<i8", "FP64": "<f8", "BOOL": "?", "UINT8": "<u1", "UINT16": "<u2"}

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class InferRequest:
    """A request to score images.

    Attributes:
        id: the client's, given back.
        images: ``(N, C, H, W)`` of the gate's channels and bits, of any size.
        threshold: in place of the gate's: ``()``, or ``(C,)`` for a gate per class.
        outputs: which are wanted, and whether as binary data.
    """

    id: str | None
    images: Pixels
    threshold: NDArray[np.float64] | None
    outputs: Mapping[str, bool]


def _tensor(name: str, datatype: str, shape: Sequence[int]) -> dict[str, JsonValue]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def model_metadata(name: str, gate: Gate) -> JsonObject:
    """What a gate takes and returns; dimensions of -1 vary."""
    form, per_cue = gate.pixel_format, len(gate.detector.cue_names)
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "goen",
        "inputs": [
            _tensor(_IMAGES, f"UINT{form.bits}", [-1, form.channels, -1, -1]),
            {
                **_tensor(_THRESHOLD, "FP64", [len(gate.classes)] if gate.per_class else []),
                "parameters": {"optional": True},
            },
        ],
        "outputs": [
            _tensor(name, _TYPES.get(name, "FP64"), [-1, per_cue] if "cue" in name else [-1])
            for name in output_names(gate)
        ],
        "parameters": gate_metadata(gate),
    }


def gate_metadata(gate: Gate) -> JsonObject:
    """What clients may want to know of a gate besides its tensors."""
    return {
        "classes": list(gate.classes),
        "cues": list(gate.detector.cue_names),
        "image_size": list(gate.image_size),
        "false_alarm_rate": gate.false_alarm_rate,
        "num_held_out": gate.num_held_out,
        "engine": gate.engine,
    }


def parse_infer(body: bytes, header_length: str | None, gate: Gate, limits: Limits) -> InferRequest:
    """The request in a body: JSON, after which binary tensors may follow.

    Raises:
        Rejected: it is not such a request, or asks for more than the limits allow.
    """
    try:
        header, binary = _split(body, header_length)
        if len(header) > JSON_BYTES:
            raise ValueError(
                f"its JSON is larger than {JSON_BYTES:,} bytes; send images as binary data"
            )
        request = Manifest(parse_object(header))
        tensors = _inputs(request, binary, limits, gate.pixel_format)
        if _IMAGES not in tensors:
            raise ValueError(f"it has no input {_IMAGES!r}")
        return InferRequest(
            id=request.text("id") if "id" in request else None,
            images=tensors[_IMAGES],
            threshold=_checked_threshold(tensors.get(_THRESHOLD), gate),
            outputs=_wanted(request, gate),
        )
    except ValueError as error:
        raise Rejected("bad_request", f"This is no inference request: {error}.") from error


def _split(body: bytes, header_length: str | None) -> tuple[bytes, bytes]:
    """JSON and binary data."""
    if header_length is None:
        return body, b""
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 12):
        raise ValueError(f"{HEADER_LENGTH} should be a whole number")
    if int(header_length) > len(body):
        raise ValueError(f"{HEADER_LENGTH} is {header_length}, but the body has {len(body)} bytes")
    return body[: int(header_length)], body[int(header_length) :]


def _inputs(
    request: Manifest, binary: bytes, limits: Limits, form: PixelFormat
) -> dict[str, NDArray[Any]]:
    known = {_IMAGES: f"UINT{form.bits}", _THRESHOLD: "FP64"}
    found: dict[str, NDArray[Any]] = {}
    for tensor in request.parts("inputs"):
        name, datatype = tensor.text("name"), tensor.text("datatype")
        if name not in known or name in found:
            raise ValueError(f"it has an unknown input, or one twice: {quoted(name)}")
        if datatype != known[name]:
            raise ValueError(f"{name} should have the datatype {known[name]}, got {datatype[:20]}")
        shape = _shape(tensor, name, limits, form.channels)
        dtype = np.dtype(_NUMPY[datatype])
        parameters = _parameters(tensor)
        if "binary_data_size" not in parameters:
            found[name] = _from_json(tensor, name, shape, dtype)
            continue
        size, needed = parameters.integer("binary_data_size"), math.prod(shape) * dtype.itemsize
        if size != needed or size > len(binary):
            raise ValueError(
                f"{name} of shape {list(shape)} has {needed} bytes; its binary_data_size is "
                f"{size}, and {len(binary)} bytes are left"
            )
        found[name] = np.frombuffer(binary[:size], dtype).reshape(shape)
        binary = binary[size:]
    if binary:
        raise ValueError(f"{len(binary)} bytes of binary data belong to no input")
    return found


def _parameters(part: Manifest) -> Manifest:
    return part.part("parameters") if "parameters" in part else Manifest({})


def _shape(tensor: Manifest, name: str, limits: Limits, channels: int) -> tuple[int, ...]:
    value = tensor.content.get("shape")
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 2**31 for n in value):
        raise ValueError(f"the shape of {name} should be a list of whole numbers")
    shape = tuple(cast("list[int]", value))
    if name == _THRESHOLD:
        if len(shape) > 1:
            raise ValueError(f"{_THRESHOLD} should be one number, or one for each class")
        return shape
    if len(shape) != 4 or shape[1] != channels or min(shape[2:]) < 1:
        raise ValueError(
            f"{_IMAGES} should have the shape (N, {channels}, H, W), got {list(shape)[:8]}"
        )
    if shape[0] > limits.images:
        raise Rejected(
            "too_many_images",
            f"A request holds at most {limits.images} images, got {shape[0]}; send several.",
        )
    if shape[2] * shape[3] > limits.pixels:
        raise Rejected(
            "too_many_pixels",
            f"These images have {shape[3]}×{shape[2]} pixels; at most {limits.pixels:,} are read.",
        )
    return shape


def _from_json(
    tensor: Manifest, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """The numbers of a list, flat or nested."""
    data = tensor.content.get("data")
    if not isinstance(data, list):
        raise ValueError(f"{name} has neither data nor a binary_data_size")
    # As objects: by itself NumPy would make every element as long as the longest text.
    values = np.array(data, dtype=object)
    if values.size != math.prod(shape):
        raise ValueError(f"{name} of shape {list(shape)} has {values.size} numbers in its data")
    whole = dtype.kind == "u"
    if not set(map(type, values.flat)) <= ({int} if whole else {int, float}):
        raise ValueError(f"{name} should hold {'whole ' if whole else ''}numbers")
    try:
        numbers = values.astype(np.int64 if whole else np.float64)
    except OverflowError as error:
        raise ValueError(f"{name} holds a number that is too large") from error
    found = numbers.astype(dtype)
    if whole and not np.array_equal(found, numbers):
        raise ValueError(f"{name} should hold numbers from 0 to {np.iinfo(dtype).max}")
    return found.reshape(shape)


def _checked_threshold(given: NDArray[np.float64] | None, gate: Gate) -> NDArray[np.float64] | None:
    if given is None:
        return None
    expected = len(gate.classes) if gate.per_class else 1
    if given.size != expected or np.isnan(given).any():
        raise ValueError(f"{_THRESHOLD} should hold {expected} numbers, got {given.size}")
    return given if gate.per_class else given.reshape(())


def _wanted(request: Manifest, gate: Gate) -> dict[str, bool]:
    """The outputs that are asked for, and whether each is binary; all if none are named."""
    known = output_names(gate)
    whole = _parameters(request).flag("binary_data_output", False)
    if "outputs" not in request:
        return dict.fromkeys(known, whole)
    wanted = {}
    for output in request.parts("outputs"):
        name = output.text("name")
        if name not in known:
            raise ValueError(f"it asks for an unknown output {quoted(name)}; known: {known}")
        wanted[name] = _parameters(output).flag("binary_data", whole)
    return wanted


def fitted_image(image: Pixels, size: tuple[int, int]) -> Pixels:
    """One image ``(C, H, W)`` at the gate's size, resized as images are.

    Raises:
        Rejected: it cannot be resized.
    """
    try:
        return resize_image(image, size, "This image")
    except DataCorrupt as error:
        raise Rejected("too_many_pixels", str(error)) from error


def infer_outputs(
    gate: Gate, scored: Sequence[Prediction], threshold: NDArray[np.float64] | None
) -> Arrays:
    """The outputs of these images, in their order."""
    none = np.zeros((0, gate.pixel_format.channels, *gate.image_size), np.uint8)
    found = as_outputs(concatenate([*scored]) if scored else gate.predict(none))
    if threshold is not None:
        line = threshold[found["label"]] if gate.per_class else threshold
        found["is_ood"] = ~(found["score"] - gate.score_tolerance <= line)  # NaN is flagged
    return found


def infer_response(name: str, request: InferRequest, outputs: Arrays) -> Response:
    """The answer: JSON, after which binary tensors follow if they were asked for."""
    described: list[JsonValue] = []
    binary = []
    for output, is_binary in request.outputs.items():
        datatype = _TYPES.get(output, "FP64")
        values = outputs[output].astype(_NUMPY[datatype])
        about = _tensor(output, datatype, values.shape)
        if is_binary:
            about["parameters"] = {"binary_data_size": values.nbytes}
            binary.append(values.tobytes())
        else:
            # JSON has no infinity.
            about["data"] = [v if math.isfinite(v) else None for v in values.ravel().tolist()]
        described.append(about)
    body: dict[str, JsonValue] = {"model_name": name, "model_version": VERSION}
    if request.id is not None:
        body["id"] = request.id
    header = json.dumps({**body, "outputs": described}).encode()
    if not any(request.outputs.values()):
        return Response(header, media_type="application/json")
    length = {HEADER_LENGTH: str(len(header))}
    content = header + b"".join(binary)
    return Response(content, media_type="application/octet-stream", headers=length)
