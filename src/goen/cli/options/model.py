"""The options --model, --weights and --preprocess: a user's own model, or another library's."""

import importlib
import sys
from pathlib import Path
from typing import cast

from torch import nn

from goen.errors import UsageError
from goen.features.importing import missing_library
from goen.features.loaded_model import LoadedModel
from goen.features.loading import (
    as_loaded,
    describe_torchvision,
    is_library_model,
    load_model,
    open_architecture,
)
from goen.features.preprocess import Preprocessing
from goen.features.weights import load_weights
from goen.gate import Gate, load
from goen.gate.export.engine import EngineOption
from goen.gate.storage.saving import count_saved_classes
from goen.models.placement import find_device


def make_model(name: str, weights: Path | None = None) -> LoadedModel:
    """The model that ``pkg.module:factory`` returns, or another library's, with these weights.

    The current folder is searched for the module first, as by ``python -m``. ``hf:FOLDER`` and
    ``timm:NAME`` are no modules; see ``load_model``.

    Raises:
        UsageError: no such module, function or model, or it does not return a model.
        ArtifactError: the weights cannot be read, or belong to another model.
        ExtraMissing: the other library is not here or cannot be imported.
    """
    if is_library_model(name):
        return load_model(name, weights)
    made = _find("--model", name)
    model = _called(made, name)
    if weights is None:
        return as_loaded(model)
    load_weights(model, weights)
    return describe_torchvision(model, made, weights) or as_loaded(model)


def _called(made: object, name: str) -> nn.Module:
    try:
        model = made() if callable(made) and not isinstance(made, nn.Module) else made
    except TypeError as error:
        raise UsageError(
            f"--model {name} is called without arguments, which failed: {error}. Write a "
            "small function that calls it with its arguments."
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"--model {name} returned a {type(model).__name__}, not a torch module.")
    return model


def _model_of_gate(name: str, gate: str) -> nn.Module:
    """The model for a gate, which has its own weights."""
    if is_library_model(name):
        return open_architecture(name, count_saved_classes(gate))
    return make_model(name).model


def open_gate(
    name: str,
    model: str | None,
    preprocess: str | None,
    false_alarm_rate: float | None = None,
    per_class: bool = False,
    device: str = "cpu",
    engine: EngineOption = "torch",
) -> Gate:
    """The gate of this name or folder, with the user's model and preprocessing if given."""
    place = find_device(device)
    gate = load(name, _model_of_gate(model, name) if model else None, find_preprocess(preprocess))
    gate.network.to(place)
    if false_alarm_rate is not None:
        gate = gate.with_false_alarm_rate(false_alarm_rate)
    gate = gate.with_per_class() if per_class else gate
    return gate if engine == gate.engine else gate.with_engine(engine)


def find_preprocess(name: str | None) -> Preprocessing | None:
    """The function ``pkg.module:function``, if one was named."""
    if name is None:
        return None
    function = _find("--preprocess", name)
    if not callable(function):
        raise UsageError(f"--preprocess {name} is a {type(function).__name__}, not a function.")
    return cast(Preprocessing, function)  # its tensors are checked when it is called


def _find(flag: str, name: str) -> object:
    """The object ``pkg.module:name``."""
    module, _, path = name.partition(":")
    module = module.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not module or not path:
        others = ", or hf:FOLDER, or timm:NAME" if flag == "--model" else ""
        raise UsageError(
            f"{flag} is module:function, such as my_nets:small_net{others}; got {name!r}."
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except RuntimeError as error:  # so fails a torchvision of another build than torch
        raise missing_library(module, "timm", error) from error
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{flag} {name}: {error}. Modules are searched in {Path.cwd()} and among the "
            "installed packages."
        ) from error
    return found
