"""A gate as one module that torch.export can trace: its inputs in, all that it predicts out."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from goen.batch import Inputs, parts_of
from goen.data.input_spec import ImageInputs, TensorInputs
from goen.errors import UsageError
from goen.gate.base import BaseGate
from goen.gate.decision import decide
from goen.gate.export.traceable_resize import TraceableResize
from goen.outputs import Outputs

OUTPUTS = (
    *("label", "confidence", "score", "p_value", "is_ood", "cues"),
    *("cue_p_values", "probability"),
)
"""The fields of ``Decided`` that an exported gate gives, the last two if it has them."""
# Until the difference between an engine's scores and the gate's is measured; not 0, or the ONNX
# exporter would remove it.
_UNMEASURED = 1e-5


def output_names(gate: BaseGate) -> tuple[str, ...]:
    """The names of the outputs, in their order; the last two only if the gate has them."""
    left_out = set() if gate.has_cue_p_values else {"cue_p_values"}
    left_out |= set() if gate.detector.has_probability else {"probability"}
    return tuple(name for name in OUTPUTS if name not in left_out)


def takes_8_bit_images(gate: BaseGate) -> bool:
    """Whether the gate takes images of 8 bits, which can be resized."""
    return isinstance(gate.inputs, ImageInputs) and gate.inputs.bits == 8


def input_names(gate: BaseGate) -> tuple[str, ...]:
    """The names of the inputs, without the threshold.

    Raises:
        UsageError: the model has an argument that is called as the threshold is.
    """
    if isinstance(gate.inputs, ImageInputs):
        return ("images",)
    form, parts = gate.inputs.form, tuple(gate.inputs.parts)
    if "threshold" in parts:
        raise UsageError(f"An exported gate has an input 'threshold', and the model too: {parts}.")
    named = {"tensor": ("inputs",), "tuple": tuple(f"input_{name}" for name in parts)}
    return named.get(form, parts)


def tensor_example(inputs: TensorInputs) -> tuple[Inputs, Any]:
    """Two inputs, and which of their axes may have any length."""
    # Where the model allows it, such as the length of a text.
    free, count = torch.export.Dim.AUTO, torch.export.Dim("count")
    example = inputs.pattern()
    axes = {
        name: {0: count, **dict.fromkeys(range(1, part.ndim), free)}
        for name, part in parts_of(example).items()
    }
    shapes = {"dict": axes, "tensor": axes.get(""), "tuple": tuple(axes.values())}
    return example, shapes[inputs.form]


class TraceableGate(nn.Module):
    """Images (of the gate's bits), or its other inputs, and a threshold in; ``output_names`` out.

    The arithmetic behind the network is that of the gate, ``goen.gate.decision.decide``.

    Args:
        gate: fitted.
        any_size: whether images of another size than the gate's are resized, if it takes images of
            8 bits; else they must have that size.
    """

    tolerance: Tensor

    def __init__(self, gate: BaseGate, *, any_size: bool = True) -> None:
        super().__init__()
        resized = any_size and takes_8_bit_images(gate)
        self.resize = TraceableResize(gate.image_size) if resized else nn.Identity()
        self.network = gate.network
        self.detector = gate.detector
        self.reference = gate.reference
        self.register_buffer("tolerance", torch.tensor(_UNMEASURED, dtype=torch.float64))

    def forward(self, images: Inputs, threshold: Tensor) -> tuple[Tensor, ...]:
        outputs: Outputs = self.network(self.resize(images))
        reference = replace(self.reference, tolerance=self.tolerance)
        found = decide(self.detector, outputs.keep(self.detector.features), reference, threshold)
        return tuple(part for part in found[: len(OUTPUTS)] if part is not None)
