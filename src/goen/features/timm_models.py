"""Classifiers of timm by name, with weights from a file."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from math import floor
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn

from goen.errors import UsageError
from goen.features.image_config import report_approximation
from goen.features.importing import import_library
from goen.features.loaded_model import LoadedModel
from goen.features.preprocess import Preprocess
from goen.features.weights import load_state, read_weights
from goen.io.manifest import JsonObject, Manifest
from goen.models.seeding import seeded


def open_timm(
    name: str, weights: Path | None = None, *, num_classes: int | None = None
) -> LoadedModel:
    """The model of this name in timm, with the weights of a file, and timm's own preprocessing.

    Nothing is downloaded.

    Args:
        name: such as ``resnet18`` or ``vit_base_patch16_224.augreg_in21k_ft_in1k``. What follows
            the dot says which pretrained weights they are, and so which preprocessing.
        weights: a ``.safetensors`` or ``.pt`` file; without one they are random, for a gate, which
            has its own.
        num_classes: of the classifier; by default as many as the weights have.

    Raises:
        UsageError: timm has no such model.
        ArtifactError: weights that cannot be read, or of another model.
        ExtraMissing: timm is not here or cannot be imported.
    """
    timm = import_library("timm", "timm")
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise _no_such_model(architecture, timm.list_models())
    if tag and name not in timm.list_pretrained(f"{architecture}*"):
        raise _no_such_model(name, timm.list_pretrained(f"{architecture}*"))
    state = None if weights is None else read_weights(weights)
    if state is not None and num_classes is None:
        num_classes = _class_count(timm, name, state)
    options = {} if num_classes is None else {"num_classes": num_classes}
    with seeded(0):
        model: nn.Module = timm.create_model(name, pretrained=False, **options)
    if state is not None and weights is not None:
        load_state(model, state, weights)
    source = f"timm:{name}"
    data: JsonObject = import_library("timm.data", "timm").resolve_model_data_config(model)
    return LoadedModel(
        model.eval(), source, (), cache(lambda: from_timm(Manifest(_listed(data)), source))
    )


def _no_such_model(name: str, known: Sequence[str]) -> UsageError:
    near = get_close_matches(name, known, n=3) or known[:3]
    return UsageError(
        f"timm has no model {name!r}. Did you mean {', '.join(near)}? timm.list_models() and "
        "timm.list_pretrained() list all."
    )


def _class_count(timm: ModuleType, name: str, state: Mapping[str, Tensor]) -> int | None:
    """How many classes the weights are for; ``None`` if that cannot be seen."""
    config = timm.get_pretrained_cfg(name)
    layers = getattr(config, "classifier", None) or ()
    names = [layers] if isinstance(layers, str) else [*layers]
    found = [state[f"{layer}.weight"] for layer in names if f"{layer}.weight" in state]
    return int(found[0].shape[0]) if found else None


def _listed(data: JsonObject) -> JsonObject:
    """Tuples as lists, as JSON has them."""
    return {name: [*v] if isinstance(v, tuple) else v for name, v in data.items()}


def from_timm(config: Manifest, name: str) -> Preprocess:
    """The preprocessing that timm's data config describes.

    Args:
        config: what ``timm.data.resolve_model_data_config`` returns.
        name: of the model, for messages.

    Raises:
        UsageError: a step that goen does not have.

    Example:
        >>> config = {"input_size": [3, 7, 7], "crop_pct": 0.875, "mean": [0.5], "std": [0.2]}
        >>> from_timm(Manifest(config), "a model")
        Preprocess(mean=(0.5,), std=(0.2,), size=(8, 8), crop=(7, 7))
    """
    channels, height, width = config.counts("input_size")
    if channels != 3:
        raise UsageError(f"{name} takes {channels} channels: give its preprocessing yourself.")
    mode = config.text("crop_mode") if "crop_mode" in config else "center"
    if mode not in ("center", "squash"):
        raise UsageError(
            f"{name} pads pictures ({mode}), which goen does not: give a function that does "
            "(preprocess=, --preprocess)."
        )
    share = config.number("crop_pct") if "crop_pct" in config else 1.0
    size = floor(height / share), floor(width / share)
    crop = None if size == (height, width) else (height, width)
    used = config.text("interpolation") if "interpolation" in config else "bilinear"
    report_approximation(name, used, proportional=mode == "center")
    return Preprocess(config.numbers("mean"), config.numbers("std"), size, crop)
