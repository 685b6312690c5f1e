"""A user's own model on the command line: ``pkg.module:factory``, and its weights."""

import importlib
import sys
from pathlib import Path
from typing import Any

from torch import nn

from goen.errors import UsageError
from goen.gate import Gate, load
from goen.models.tapping.preprocess import Preprocessing
from goen.models.weights import load_weights


def make_model(factory: str, weights: Path | None = None) -> nn.Module:
    """The model that ``pkg.module:factory`` returns, with these weights.

    The module is looked for in the current folder first, as ``python -m`` does.

    Raises:
        UsageError: no such module or function, or one that gives no model.
        ArtifactError: weights that cannot be read, or are another model's.
    """
    made = _find("--model", factory)
    try:
        model = made if isinstance(made, nn.Module) else made()
    except TypeError as error:
        raise UsageError(
            f"--model {factory} is called without arguments, which failed: {error}. Write a small "
            "function that fills them in."
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"--model {factory} gave a {type(model).__name__}, not a torch module.")
    if weights is not None:
        load_weights(model, weights)
    return model


def open_gate(
    name: str,
    model: str | None,
    preprocess: str | None,
    false_alarm_rate: float | None = None,
    *,
    per_class: bool = False,
) -> Gate:
    """The gate of this name or folder, with the user's own code where it needs some."""
    gate = load(name, make_model(model) if model else None, find_preprocess(preprocess))
    if false_alarm_rate is not None:
        gate = gate.with_false_alarm_rate(false_alarm_rate)
    return gate.with_per_class() if per_class else gate


def find_preprocess(name: str | None) -> Preprocessing | None:
    """The function ``pkg.module:function``, if one was named."""
    if name is None:
        return None
    function = _find("--preprocess", name)
    if not callable(function):
        raise UsageError(f"--preprocess {name} is a {type(function).__name__}, not a function.")
    found: Preprocessing = function
    return found


def _find(flag: str, name: str) -> Any:
    """What ``pkg.module:name`` is."""
    module, _, path = name.partition(":")
    module = module.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not module or not path:
        raise UsageError(f"{flag} is module:function, such as my_nets:small_net; got {name!r}.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{flag} {name}: {error}. The module is looked for in {Path.cwd()} and among the "
            "installed packages."
        ) from error
    return found
