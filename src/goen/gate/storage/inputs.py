"""What a gate takes, in its manifest."""

import math
from typing import cast, get_args

from goen.data.images.pixel_format import COLOUR, Bits
from goen.data.images.resizing import RESIZE_FILTER
from goen.data.input_spec import Dtype, Form, ImageInputs, InputSpec, TensorInputs, TensorPart
from goen.errors import UsageError, quoted
from goen.io.limits import INPUT_VALUES, MEMBERS, check_image_size
from goen.io.manifest import JsonObject, JsonValue, Manifest

FIELDS = ("image_size", "channels", "bits", "image_reading", "inputs")


def _image_reading(inputs: ImageInputs) -> JsonObject:
    """How picture files become images for a gate; see ``goen.read_image``."""
    return {"decode": inputs.pixel_format.decoding, "resize": RESIZE_FILTER}


def inputs_manifest(inputs: InputSpec) -> JsonObject:
    """The fields that describe them. Gates of colour images say no more than their size."""
    if isinstance(inputs, ImageInputs):
        fields: dict[str, JsonValue] = {
            "image_size": [inputs.height, inputs.width],
            "image_reading": _image_reading(inputs),
        }
        if inputs.channels != COLOUR.channels:
            fields["channels"] = inputs.channels
        return fields if inputs.bits == COLOUR.bits else {**fields, "bits": inputs.bits}
    parts: list[JsonObject] = [
        {"name": name, "dtype": part.dtype, "sizes": list(part.sizes)}
        for name, part in inputs.parts.items()
    ]
    return {"inputs": {"form": inputs.form, "parts": parts}}


def check_inputs(inputs: InputSpec, network: Manifest) -> None:
    """Raise a ``UsageError`` unless a gate with such inputs can be saved and loaded.

    Args:
        inputs: of the gate.
        network: its description; goen's own have a width, ensembles a number of members.
    """
    members = network.count("members", 1)
    if members > MEMBERS:
        raise UsageError(
            f"A gate can have an ensemble of at most {MEMBERS} networks, got {members}."
        )
    if isinstance(inputs, ImageInputs):
        width = network.count("width") if "width" in network else 0
        check_image_size(*inputs.size, width, members)
        values = inputs.channels * inputs.height * inputs.width
    else:
        values = sum(math.prod(part.sizes) for part in inputs.parts.values())
    if values > INPUT_VALUES:
        raise UsageError(f"An input should have at most {INPUT_VALUES:,} values, got {inputs}.")


def read_inputs(manifest: Manifest) -> InputSpec:
    """What the gate takes, checked.

    Raises:
        ValueError: what goen does not write.
        UsageError: inputs that are too large.
    """
    inputs = _tensors(manifest.part("inputs")) if "inputs" in manifest else _images(manifest)
    if isinstance(inputs, ImageInputs):
        _check_image_reading(manifest, inputs)
    check_inputs(inputs, manifest.part("network") if "network" in manifest else Manifest({}))
    return inputs


def _images(manifest: Manifest) -> ImageInputs:
    bits = manifest.count("bits", COLOUR.bits)
    if bits not in (8, 16):
        raise ValueError(f"its images should have 8 or 16 bits, got {bits}")
    channels = manifest.count("channels", COLOUR.channels)
    return ImageInputs(channels, *manifest.size("image_size"), bits=cast(Bits, bits))


def _tensors(manifest: Manifest) -> TensorInputs:
    manifest.check_names(["form", "parts"])
    form = manifest.text("form")
    parts: dict[str, TensorPart] = {}
    for part in manifest.parts("parts"):
        part.check_names(["name", "dtype", "sizes"])
        dtype = part.text("dtype")
        if dtype not in get_args(Dtype):
            raise ValueError(f"its inputs should be float, int or bool, got {quoted(dtype)}")
        parts[part.text("name")] = TensorPart(cast(Dtype, dtype), part.counts("sizes"))
    known = [str(number) for number in range(len(parts))]
    fits = {"tensor": [*parts] == [""], "tuple": [*parts] == known, "dict": bool(parts)}
    if form not in get_args(Form) or not fits[form]:
        raise ValueError(
            f"its inputs should be a tensor, tuple or dict with its parts, got {quoted(form)} with "
            f"{[*parts][:10]}"
        )
    return TensorInputs(cast(Form, form), parts)


def _check_image_reading(manifest: Manifest, inputs: ImageInputs) -> None:
    """Refuse a gate whose pictures are read in another way; earlier gates do not say the way.

    Earlier gates of other images than colour say that of colour: they read no pictures.
    """
    if "image_reading" not in manifest:
        return
    for step, known in _image_reading(inputs).items():
        found = manifest.part("image_reading").text(step)
        if found != known and (step, found) != ("decode", COLOUR.decoding):
            raise ValueError(
                f"it wants pictures read in a way that is not known here ({step}: {quoted(found)}, "
                f"expected {known!r}); a newer goen may know it"
            )
