"""A gate as one module that torch.export can trace: its inputs in, all that it predicts out."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from goen.batch import Inputs, parts_of
from goen.data.kinds import ImageInputs, TensorInputs
from goen.errors import UsageError
from goen.gate.gate import Gate
from goen.gate.resize import TraceableResize
from goen.outputs import Outputs

ALWAYS = ("label", "confidence", "score", "p_value", "is_ood", "cues")
# Until the difference between an engine's scores and the gate's is measured; not 0, or the ONNX
# exporter would remove it.
_UNMEASURED = 1e-5


def output_names(gate: Gate) -> tuple[str, ...]:
    """The names of the outputs, in their order; the last two only if the gate has them."""
    cue_p_values = ("cue_p_values",) if gate.detector.has_cue_p_values else ()
    probability = ("probability",) if gate.detector.has_probability else ()
    return (*ALWAYS, *cue_p_values, *probability)


def takes_pictures(gate: Gate) -> bool:
    """Whether the gate takes images of 8 bits, which can be resized."""
    return isinstance(gate.inputs, ImageInputs) and gate.inputs.bits == 8


def input_names(gate: Gate) -> tuple[str, ...]:
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


def fitted_threshold(gate: Gate) -> Tensor:
    """The default of the input ``threshold``: ``()``, or ``(C,)`` for a gate per class."""
    values = gate.class_thresholds if gate.per_class else np.float64(gate.threshold)
    return torch.as_tensor(values, dtype=torch.float64)


class TraceableGate(nn.Module):
    """Images (of the gate's bits), or its other inputs, and a threshold in; ``output_names`` out.

    Args:
        gate: fitted.
        any_size: whether images of another size than the gate's are resized, if it takes images of
            8 bits; else they must have that size.
    """

    held_out: Tensor
    held_out_labels: Tensor
    slack: Tensor
    id_cues: Tensor
    directions: Tensor

    def __init__(self, gate: Gate, *, any_size: bool = True) -> None:
        super().__init__()
        resized = any_size and takes_pictures(gate)
        self.resize = TraceableResize(gate.image_size) if resized else nn.Identity()
        self.network = gate.network
        self.detector = gate.detector.traceable()
        self.features = gate.detector.features
        self.probability = gate.detector.probability
        self.per_class = gate.per_class
        self.register_buffer("held_out", torch.from_numpy(gate.held_out.scores.copy()))
        labels = gate.held_out.labels
        # Not empty where there are none: torch.export cannot save an empty tensor.
        kept = np.zeros(1, np.int64) if labels is None else labels.copy()
        self.register_buffer("held_out_labels", torch.from_numpy(kept))
        self.register_buffer("slack", torch.tensor(_UNMEASURED, dtype=torch.float64))
        self.has_cue_p_values = gate.detector.id_cues_ is not None
        if gate.detector.id_cues_ is not None:
            directions = torch.tensor(gate.detector.cue_directions, dtype=torch.float64)
            self.register_buffer("directions", directions)
            self.register_buffer("id_cues", gate.detector.id_cues_ * directions)

    def forward(self, images: Inputs, threshold: Tensor) -> tuple[Tensor, ...]:
        outputs: Outputs = self.network(self.resize(images))
        cues, score = self.detector(outputs)
        # As in the gate: what is not finite is flagged, with the least p-values.
        finite = torch.isfinite(score) & torch.isfinite(outputs.logits).all(dim=1)
        for name in self.features:
            finite = finite & torch.isfinite(outputs.features[name]).all(dim=1)
        score = torch.where(finite, score, torch.full_like(score, torch.inf))
        cues = torch.where(finite[:, None], cues, torch.full_like(cues, torch.inf))
        logits = torch.where(finite[:, None], outputs.logits.double(), 0.0)
        confidence, label = torch.softmax(logits, dim=1).max(dim=1)
        confidence = torch.where(finite, confidence, torch.zeros_like(confidence))
        p_value, is_ood = self._decide(score, label, threshold)
        found = [label, confidence, score, p_value, is_ood, cues]
        if self.has_cue_p_values:
            found.append(self._cue_p_values(cues, finite))
        probability = self.probability(score)
        return tuple(found if probability is None else [*found, probability])

    def _decide(self, score: Tensor, label: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        lowest = score - self.slack
        above = self.held_out >= lowest[:, None]
        if not self.per_class:
            return _p_value(above, len(self.held_out)), lowest > threshold
        same = self.held_out_labels == label[:, None]
        return _p_value(above & same, same.to(torch.float64).sum(dim=1)), lowest > threshold[label]

    def _cue_p_values(self, cues: Tensor, finite: Tensor) -> Tensor:
        # Of an image that is not finite every cue counts as unusual, in whichever direction.
        upwards = torch.where(finite[:, None], cues * self.directions, torch.inf)
        columns = zip(upwards.unbind(dim=1), self.id_cues.unbind(dim=1), strict=True)
        return torch.stack(
            [_p_value(id_cue >= cue[:, None], len(self.id_cues)) for cue, id_cue in columns], dim=1
        )


def _p_value(at_least: Tensor, count: int | Tensor) -> Tensor:
    """Conformal p-values ``(N,)``: ``at_least`` is ``(N, n)``, of which ``count`` could be true."""
    return (1 + at_least.to(torch.float64).sum(dim=1)) / (count + 1)
