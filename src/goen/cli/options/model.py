"""The options --model, --weights and --preprocess: a user's own model, or another library's."""

import importlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from torch import nn

from goen.cli.options.error_rate import asked_error_rate
from goen.cli.options.types import OptionalFunction, OptionalModel, OptionalRate
from goen.data.input_spec import ImageInputs
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
from goen.gate import Gate, bundled_gates, load
from goen.gate.storage.network import unwrapped
from goen.gate.storage.saving import count_saved_classes


def make_model(name: str, weights: Path | None = None) -> LoadedModel:
    """The model that ``pkg.module:factory`` returns, or another library's, with these weights.

    The current folder is searched for the module first, as by ``python -m``. ``hf:FOLDER`` and
    ``timm:NAME`` are no modules; see ``load_model``. The folder of a run or of a gate, or the name
    of a bundled gate, is the network of that gate.

    Raises:
        UsageError: no such module, function or model, or it does not return a model.
        ArtifactError: the weights cannot be read, or belong to another model.
        ExtraMissing: the other library is not here or cannot be imported.
    """
    if is_library_model(name):
        return load_model(name, weights)
    if Path(name).is_dir() or name in bundled_gates():
        return _network_of(name, weights)
    made = _find("--model", name)
    model = _called(made, name)
    if weights is None:
        return as_loaded(model)
    load_weights(model, weights)
    return describe_torchvision(model, made, weights) or as_loaded(model)


def _network_of(name: str, weights: Path | None) -> LoadedModel:
    """The network of a gate without flip averaging, its classes and the size of its images."""
    if weights is not None:
        raise UsageError(f"The network of {name} has its weights: leave out --weights.")
    gate = load(name)
    size = gate.image_size if isinstance(gate.inputs, ImageInputs) else None
    return LoadedModel(unwrapped(gate.network), name, gate.classes, image_size=size)


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


@dataclass(frozen=True)
class GateOptions:
    """A gate's own model.

    Attributes:
        model: the --model of goen fit, for a gate made by it: MODULE:FUNCTION, hf:FOLDER or
            timm:NAME. Not needed for pretrained:NAME.
        preprocess: the preprocessing function, if the gate was fitted with one.
    """

    model: OptionalModel = None
    preprocess: OptionalFunction = None

    def open(self, name: str) -> Gate:
        """The gate of this name or folder, on the CPU."""
        model = None
        if self.model is not None and is_library_model(self.model):
            model = open_architecture(self.model, count_saved_classes(name))
        elif self.model is not None:
            model = make_model(self.model).model
        return load(name, model, find_preprocess(self.preprocess) if self.preprocess else None)


@dataclass(frozen=True)
class RateOptions(GateOptions):
    """A gate's own model, and its false-alarm rate.

    Attributes:
        false_alarm_rate: upper bound on the probability that an ID image is flagged (default: the
            gate's).
        per_class: one threshold per predicted class; needs enough held-out images of each.
        error_rate: accept images of which at most this share is misclassified, among those that
            are not flagged; needs labels of the gate's held-out images (default: the gate's).
        error_confidence: the probability with which the error rate is kept (default: the gate's,
            else 0.95).
    """

    false_alarm_rate: OptionalRate = None
    per_class: bool = False
    error_rate: OptionalRate = None
    error_confidence: OptionalRate = None

    def open(self, name: str) -> Gate:
        """The gate at this rate."""
        gate = super().open(name)
        errors = asked_error_rate(self.error_rate, self.error_confidence, gate.error_rate)
        if errors != gate.error_rate:  # the earlier one need not hold at another rate
            gate = replace(gate, error_rate=None)
        if self.false_alarm_rate is not None:
            gate = gate.with_false_alarm_rate(self.false_alarm_rate)
        gate = gate.with_per_class() if self.per_class else gate
        return gate if errors == gate.error_rate else replace(gate, error_rate=errors)


def find_preprocess(name: str) -> Preprocessing:
    """The function ``pkg.module:function``."""
    function = _find("--preprocess", name)
    if not callable(function):
        raise UsageError(f"--preprocess {name} is a {type(function).__name__}, not a function.")
    return cast(Preprocessing, function)  # its tensors are checked when it is called


def _find(flag: str, name: str) -> object:
    """The object ``pkg.module:name``."""
    module, _, path = name.partition(":")
    module = module.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not module or not path:
        others = ", hf:FOLDER, timm:NAME or the folder of a run" if flag == "--model" else ""
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
