"""The options --model, --weights and --preprocess: a user's own model."""

import importlib
import sys
from pathlib import Path
from typing import cast

from torch import nn

from goen.cli.terminal import note
from goen.data.folders import image_forms, image_size
from goen.data.forms import COLOUR, PixelForm
from goen.errors import UsageError
from goen.gate import Gate, load
from goen.models.placement import find_device
from goen.models.tapping.layers import accepts_images
from goen.models.tapping.preprocess import Preprocessing
from goen.models.weights import load_weights


def make_model(factory: str, weights: Path | None = None) -> nn.Module:
    """The model that ``pkg.module:factory`` returns, with these weights.

    The current folder is searched for the module first, as by ``python -m``.

    Raises:
        UsageError: no such module or function, or it does not return a model.
        ArtifactError: the weights cannot be read, or belong to another model.
    """
    made = _find("--model", factory)
    try:
        model = made() if callable(made) and not isinstance(made, nn.Module) else made
    except TypeError as error:
        raise UsageError(
            f"--model {factory} is called without arguments, which failed: {error}. Write a "
            "small function that calls it with its arguments."
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"--model {factory} returned a {type(model).__name__}, not a torch module."
        )
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
    device: str = "cpu",
) -> Gate:
    """The gate of this name or folder, with the user's model and preprocessing if given."""
    place = find_device(device)
    gate = load(name, make_model(model) if model else None, find_preprocess(preprocess))
    gate.network.to(place)
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
    return cast(Preprocessing, function)  # its tensors are checked when it is called


def find_form(
    train: str, model: nn.Module, size: tuple[int, int] | None, preprocess: Preprocessing | None
) -> PixelForm:
    """How the pictures of a dataset are read for a model: the first form that the model takes.

    A note says so if that is not colour. If it takes none of them, the usual one is returned: the
    fit has the reason.
    """
    forms = image_forms(train)
    if len(forms) == 1:
        return forms[0]
    for form in forms:
        height, width = size or image_size(train, form)
        if accepts_images(model, (form.channels, height, width), preprocess):
            if form != COLOUR:
                note(f"the model takes images of {form}: pictures are read as such")
            return form
    return forms[0]


def _find(flag: str, name: str) -> object:
    """The object ``pkg.module:name``."""
    module, _, path = name.partition(":")
    module = module.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not module or not path:
        raise UsageError(f"{flag} is module:function, such as my_nets:small_net; got {name!r}.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{flag} {name}: {error}. Modules are searched in {Path.cwd()} and among the "
            "installed packages."
        ) from error
    return found
