"""Weights from a file into a model, without running code from the file."""

import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from textwrap import shorten

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from goen.errors import ArtifactError
from goen.features.unwrapping import match_names
from goen.models import Backbone


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights in this file into the model, whichever of the two was wrapped."""
    load_state(model, read_weights(path), path)


def load_state(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Load weights by name into the model, whichever of the two was wrapped.

    goen's own network calls ``classifier`` what others of the same weights, such as OpenOOD's
    ResNet-18, call ``fc``.

    Args:
        model: to load them into.
        state: the weights.
        path: where they come from, for error messages.
    """
    own = model.state_dict()
    if isinstance(model, Backbone):
        state = {_own_name(name, own): value for name, value in state.items()}
    names = match_names(state, own)
    try:
        model.load_state_dict({names[name]: value for name, value in state.items()})
    except RuntimeError as error:
        # Each lists all names of a kind: the first few tell what is wrong.
        lines = [shorten(line, 300, placeholder=" ...") for line in str(error).splitlines()[1:3]]
        if isinstance(model, Backbone):  # as the files of others call it
            lines = [re.sub(r"\bclassifier\.", "fc.", line) for line in lines]
        raise ArtifactError(
            f"{path} does not fit this model. {' '.join(lines) or error}"
        ) from error


def _own_name(name: str, own: Collection[str]) -> str:
    renamed = re.sub(r"(^|\.)fc\.(weight|bias)$", r"\1classifier.\2", name)
    return name if name in own else renamed


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dictionary from a ``.safetensors`` file, or from a ``.pt`` that runs no code."""
    if not path.is_file():
        raise ArtifactError(f"{path} {'is not a file' if path.exists() else 'does not exist'}.")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ArtifactError(f"{path} cannot be read: {error}.") from error
    try:
        with warnings.catch_warnings():
            # About pickle versions; what cannot be read is an error.
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of bytes that are something else, the reader raises anything
        raise ArtifactError(
            f"{path} holds more than weights (a whole model, or objects), or is damaged; goen runs "
            "no code from files. Save the weights alone: torch.save(model.state_dict(), path), or "
            "safetensors."
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise ArtifactError(f"{path} holds no weights by name: save model.state_dict().")
    return {str(name): value for name, value in content.items()}
