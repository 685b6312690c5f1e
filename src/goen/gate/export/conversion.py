"""Modules of torch as ONNX: traced, converted, and opened in onnxruntime."""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from goen.errors import ExtraMissing, UsageError
from goen.models.placement import evaluating, full_precision, placement
from goen.progress import spinner

_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"


def require_onnx(purpose: str) -> None:
    """Raise an ``ExtraMissing`` unless what converting and running need is installed.

    Args:
        purpose: what needs it, the subject of the sentence.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401  (torch.onnx needs it)

        load_onnxruntime()
    except ImportError as error:
        raise ExtraMissing(f"{purpose} needs {error.name}: pip install 'goen[onnx]'.") from error


def load_onnxruntime() -> Any:
    """The module onnxruntime, imported with its telemetry off.

    From version 1.29 on its wheels for Linux write an identifier of the machine into the user's
    cache and report each session, with names and hashes of the model, to Microsoft.
    """
    given = os.environ.get(_NO_TELEMETRY)
    os.environ[_NO_TELEMETRY] = "1"  # it is read when the module is imported
    try:
        import onnxruntime
    finally:
        if given is None:
            del os.environ[_NO_TELEMETRY]
        else:
            os.environ[_NO_TELEMETRY] = given
    onnxruntime.disable_telemetry_events()  # where somebody else imported it first
    return onnxruntime


def trace(
    module: nn.Module, network: nn.Module, example: tuple[Any, ...], axes: tuple[Any, ...]
) -> torch.export.ExportedProgram:
    """The module as a program of torch.export.

    Args:
        module: calls the network.
        network: on the CPU; put into evaluation mode and left as it was found.
        example: arguments of the module.
        axes: which of their axes may have any length.

    Raises:
        UsageError: the network is on another device, or cannot be traced.
    """
    device, _ = placement(network)
    if device.type != "cpu":
        raise UsageError(f"The gate's model is on {device}, ONNX is on the CPU: model.cpu() first.")
    with (
        spinner("tracing the gate"),
        evaluating(network),
        full_precision(),
        torch.no_grad(),
        quiet_exporters(),
    ):
        try:
            return torch.export.export(module.eval(), example, dynamic_shapes=axes, strict=False)
        except Exception as error:  # the model's own code may raise anything under tracing
            raise UsageError(
                f"torch.export cannot trace this model: {_first_line(error)} Its forward pass must "
                "not depend on the values of the images or on the size of the batch."
            ) from error


def convert(
    program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]
) -> Any:
    """The program as ONNX's ``ModelProto``, with these names of its inputs and outputs.

    Raises:
        UsageError: ONNX does not support the model.
    """
    with spinner("converting to ONNX"), quiet_exporters():
        try:
            converted = torch.onnx.export(
                program,
                dynamo=True,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
        except Exception as error:  # the exporter raises many types of its own
            raise UsageError(
                f"This model cannot be converted to ONNX: {_first_line(error)}"
            ) from error
    assert converted is not None  # dynamo=True returns it
    return converted.model_proto


def open_session(model: Any) -> Any:
    """An ``InferenceSession`` of onnxruntime on the CPU, with as many threads as torch.

    Args:
        model: a file, or ONNX's ``ModelProto``.

    Raises:
        UsageError: onnxruntime cannot run it.
    """
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(
            str(model) if isinstance(model, Path) else model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        )
    except Exception as error:
        raise UsageError(
            f"onnxruntime cannot run this model: {_first_line(error)} A model in half precision "
            "must be float32 for that: model.float() before the fit."
        ) from error


def run_session(
    session: Any, outputs: Sequence[str] | None, inputs: Mapping[str, NDArray[Any]]
) -> list[NDArray[Any]]:
    """The outputs of these names, or all, of a session of onnxruntime.

    Raises:
        UsageError: onnxruntime cannot compute them.
    """
    try:
        found: list[NDArray[Any]] = session.run(outputs, dict(inputs))
    except Exception as error:  # it has types of its own, and opens models that it cannot run
        raise UsageError(f"onnxruntime cannot run this model: {_first_line(error)}") from error
    return found


@contextmanager
def quiet_exporters() -> Iterator[None]:
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
