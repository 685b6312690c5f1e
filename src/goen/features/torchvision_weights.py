"""What torchvision says about the weights that it publishes: their preprocessing and classes."""

import sys
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from torch import nn

from goen.features.image_config import report_approximation
from goen.features.loaded_model import LoadedModel, OwnPreprocess
from goen.features.preprocess import Preprocess


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
