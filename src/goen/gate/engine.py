"""Engines: what runs a gate's network. torch, or onnxruntime, which is faster on a processor.

Only the network is handed over. Cues, score, p-values and decisions are computed by the same code
for every engine. Before an engine is used, its predictions are compared with torch's on real
images, as those of an exported file are.
"""

from __future__ import annotations

from dataclasses import replace
from logging import getLogger
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from goen.batch import Inputs, parts_of
from goen.checks import check_choice
from goen.data.input_spec import ImageInputs, InputSpec
from goen.data.inputs import Arrays
from goen.errors import ArtifactError, GoenError, UsageError
from goen.features.precomputed import Precomputed
from goen.features.preprocess import prepare
from goen.gate.base import BaseGate
from goen.gate.export.comparison import (
    ExportOutputs,
    Runner,
    as_outputs,
    compare_with_gate,
    exported_types,
    input_pairs,
)
from goen.gate.export.conversion import convert, open_session, require_onnx, run_session, trace
from goen.gate.export.traceable import input_names, tensor_example
from goen.models.placement import full_precision
from goen.outputs import Outputs

_log = getLogger(__name__)
AnyGate = TypeVar("AnyGate", bound=BaseGate)

EngineOption = Literal["auto", "torch", "onnxruntime"]
# Of the images that an exported file is compared on: a slow network is to start soon as well.
_EVERY = 5


class CompiledNetwork(nn.Module):
    """A gate's network in onnxruntime: the gate's inputs to ``Outputs``, on the CPU.

    The outputs have the features that the detector reads, and no others.

    Args:
        session: of onnxruntime.
        gate: whose network it is.
        tolerance: the largest difference found between its scores and torch's, with a margin.
    """

    def __init__(self, session: Any, gate: BaseGate, tolerance: float = 0.0) -> None:
        super().__init__()
        self.tolerance = tolerance
        self.session = session
        self._inputs: InputSpec = gate.inputs
        self._names = input_names(gate)
        self._features = tuple(gate.detector.features)

    def forward(self, inputs: Inputs) -> Outputs:
        if isinstance(self._inputs, ImageInputs):
            given = prepare(inputs, None, torch.float32, "images")
        else:
            given = exported_types(inputs, self._inputs)
        arrays = (part.numpy() for part in parts_of(given).values())
        found = run_session(self.session, None, dict(zip(self._names, arrays, strict=True)))
        logits, *features = map(torch.from_numpy, found)
        return Outputs(logits, dict(zip(self._features, features, strict=True)))


class _PlainNetwork(nn.Module):
    """A network that returns a tuple: logits, and the features that the detector reads."""

    def __init__(self, gate: BaseGate) -> None:
        super().__init__()
        self.network = gate.network
        self.features = tuple(gate.detector.features)

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        outputs: Outputs = self.network(inputs)
        return outputs.logits, *(outputs.features[name] for name in self.features)


def compile_network(gate: BaseGate, images: Arrays | None = None) -> CompiledNetwork:
    """The gate's network in onnxruntime, compared with torch first.

    It uses as many threads as torch does.

    Args:
        gate: with its network on the CPU.
        images: to compare on; see ``Gate.with_engine``.

    Raises:
        UsageError: a package is missing, there is no network, or the model cannot be converted.
        ArtifactError: predictions differ from torch's.
    """
    require_onnx("The engine onnxruntime")
    gate = replace(gate, compiled=None)
    if gate.detector.needs_gradient:
        raise UsageError(f"{gate.detector} takes gradients of the network, and an engine has none.")
    if isinstance(gate.network, Precomputed):
        raise UsageError("A gate of features has no network that an engine could run.")
    pairs = input_pairs(gate, images, any_size=False, every=_EVERY)
    count = len(gate.detector.features)
    names = ["logits", *(f"feature_{number}" for number in range(count))]
    module = _PlainNetwork(gate)
    example, axes = _example(gate)
    model = convert(trace(module, gate.network, (example,), (axes,)), input_names(gate), names)
    session = open_session(model)
    try:
        tolerance = compare_with_gate(gate, lambda found: _runner(gate, session, found), pairs)
    except ArtifactError as error:
        raise ArtifactError(f"onnxruntime does not predict as torch does: {error}") from error
    return CompiledNetwork(session, gate, tolerance)


def _runner(gate: BaseGate, session: Any, tolerance: float) -> Runner:
    compiled = replace(gate, compiled=CompiledNetwork(session, gate, tolerance))

    def run(batch: Inputs) -> ExportOutputs:
        return as_outputs(compiled.predict(batch))

    return run


def _example(gate: BaseGate) -> tuple[Inputs, Any]:
    """Two inputs, and which of their axes may have any length."""
    if not isinstance(gate.inputs, ImageInputs):
        return tensor_example(gate.inputs)
    images = prepare(gate.inputs.pattern(), None, torch.float32, "images")
    return images, {0: torch.export.Dim("count")}


@full_precision()
def choose_engine(gate: AnyGate, engine: EngineOption, images: Arrays | None = None) -> AnyGate:
    """The same gate with its network run by another engine.

    onnxruntime is up to twice as fast as torch on a CPU (``pip install 'goen[onnx]'``). To
    convert the network takes seconds, once. Everything behind the network stays as it is.
    Before the engine is used, its predictions are compared with torch's, on images that come
    with goen. Scores differ in the sixth digit; those that are as close as that to a held-out
    score count as equal to it, so that no image is flagged for the difference.

    The weights are those of this moment, the number of threads that of ``torch``. ``save``,
    ``update`` and exports use the model itself; a gate that was updated, copied or sent to
    another process runs in torch again.

    Args:
        engine: ``torch``, ``onnxruntime``, or ``auto``: onnxruntime if it is installed and
            predicts as torch does, else torch, and the reason is logged.
        images: to compare on, uint8 and of the gate's size; by default images embedded in goen.
            A gate of other inputs needs some of them.

    Raises:
        UsageError: onnxruntime is missing, or cannot run this model.
        ArtifactError: its predictions differ from torch's.
    """
    check_choice("engine", engine, get_args(EngineOption))
    if engine == "torch":
        return replace(gate, compiled=None)
    if gate.engine != "torch":
        return gate
    try:
        return replace(gate, compiled=compile_network(gate, images))
    except GoenError as error:
        if engine == "onnxruntime":
            raise
        _log.info("The network runs in torch. %s", error)
        return gate
