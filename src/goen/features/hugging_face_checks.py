"""What a folder from Hugging Face may say: no file outside it, no code, no address.

transformers hands some fields of ``config.json`` to functions that open files, download or unpickle
them. Such fields are refused here, before a model is made.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

import torch
from torch import nn

from goen.errors import ArtifactError, UsageError
from goen.features.importing import import_library
from goen.io.json_files import json_object

_offline_lock = Lock()
_INDEX = "model.safetensors.index.json"
# Fields that name files, caches or weights elsewhere, in transformers and in timm.
_ELSEWHERE = frozenset(
    {
        "backbone",
        "backbone_kwargs",
        "cache_dir",
        "checkpoint_path",
        "kernel_config",
        "pretrained_cfg_overlay",
        "transformers_weights",
    }
)
# A whole number in a config: vocabularies have less than a million, contexts a few millions.
_LARGEST, _MOST_LAYERS = 20_000_000, 2_000
_COUNTS_LAYERS = ("layer", "layers", "depth", "depths", "blocks")
# A base of powers, and no size: rope_theta of long contexts.
_BASE, _LARGEST_BASE = "theta", 10**12
# Bytes of a model in float32: its weights may be of 8 bits, and some shared. Without any weights
# beside its config, which a gate has itself, it may have two billion parameters.
_TIMES_WEIGHTS, _SMALL_MODEL, _LARGEST_MODEL = 8, 1 << 26, 1 << 33
# Configs whose model is one of timm: with this name alone, and not within another config.
_TIMM_CLASSIFIER, _TIMM = "timm_wrapper", frozenset({"timm_wrapper", "timm_backbone"})


def check_folder(folder: Path) -> None:
    """Refuse what a folder must not say before transformers reads it.

    Raises:
        UsageError: quantised weights, or an adapter without its model.
        ArtifactError: a config that names files or weights elsewhere or has enormous numbers, or
            an index of weights that names files elsewhere.
    """
    content = json_object(folder / "config.json")
    if _holds(content, "quantization_config"):
        raise UsageError(
            f"The weights in {folder} are quantised, which goen does not read. Save the model in "
            "float32."
        )
    if (folder / "adapter_config.json").exists():
        raise UsageError(
            f"{folder} holds an adapter, whose model is elsewhere. Merge the two "
            "(merge_and_unload) and save the result."
        )
    for field in sorted(_ELSEWHERE):
        if _holds(content, field):
            raise ArtifactError(
                f"{folder}/config.json has a field {field}, which makes libraries open files or "
                "addresses that it names; goen opens the folder alone. Remove the field if the "
                "model does not need it."
            )
    check_numbers(content, folder)
    if (folder / _INDEX).is_file():
        _check_index(folder)


def check_numbers(content: object, folder: Path, name: str = "") -> None:
    """Refuse sizes that no model has: a number in a config may ask for all memory, or for years.

    Args:
        content: of ``config.json``, or a part of it.
        folder: where it comes from.
        name: of the field that holds the part.

    Raises:
        ArtifactError: a whole number that is too large.
    """
    if isinstance(content, Mapping):
        for field, value in content.items():
            check_numbers(value, folder, str(field))
    elif isinstance(content, list):
        for value in content:
            check_numbers(value, folder, name)
    elif isinstance(content, int):
        most = _LARGEST_BASE if name.endswith(_BASE) else _LARGEST
        most = _MOST_LAYERS if name.endswith(_COUNTS_LAYERS) else most
        if abs(content) > most:
            raise ArtifactError(
                f"{folder}/config.json has {name:.80} = {content!s:.40}; at most {most:,} is read."
            )


def check_size(make: Callable[[], nn.Module], folder: Path) -> None:
    """Refuse a config of a model that is far larger than the weights beside it.

    Args:
        make: the model, on torch's meta device, where it takes no memory.
        folder: with its weights, or with none.

    Raises:
        ArtifactError: it is larger.
    """
    try:
        with torch.device("meta"):
            model = make()
    except Exception:  # whoever makes it in earnest gets the reason
        return
    tensors = [*model.parameters(), *model.buffers()]
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    most = _TIMES_WEIGHTS * weights + _SMALL_MODEL if weights else _LARGEST_MODEL
    if needed > most:
        raise ArtifactError(
            f"{folder}/config.json describes a model of {needed:,} bytes, and its weights have "
            f"{weights:,}. Is it the config of another model?"
        )


def check_config(config: Any, folder: Path) -> None:
    """Refuse a config of transformers that makes timm open something.

    A classifier of timm may say which architecture it is and set numbers and switches of it.

    Args:
        config: as transformers has read it.
        folder: where it comes from.

    Raises:
        ArtifactError: another architecture than timm's own, an argument that is no number or
            switch, or a network of timm within another.
    """
    for part in _parts(config):
        if part.model_type in _TIMM and (part is not config or part.model_type != _TIMM_CLASSIFIER):
            raise ArtifactError(
                f"{folder} holds a model with a network of timm inside, which goen does not open. "
                "Give the model itself (model=)."
            )
    if config.model_type != _TIMM_CLASSIFIER:
        return
    name = config.architecture
    if not isinstance(name, str) or not import_library("timm", "timm").is_model(name):
        raise ArtifactError(
            f"{folder}/config.json names the architecture {name!r:.80}, which is not one of timm's "
            "(timm.list_models() lists them)."
        )
    for field, value in (config.model_args or {}).items():
        if not _is_plain(value):
            raise ArtifactError(
                f"{folder}/config.json gives timm {field}={value!r:.80}; of such arguments goen "
                "passes on numbers and switches alone."
            )


@contextmanager
def offline() -> Iterator[None]:
    """Without any request of huggingface_hub, which sends some even for a folder.

    For one thread at a time: another that ends first would undo it for both.
    """
    constants: Any = import_library("huggingface_hub.constants", "hf")
    with _offline_lock:
        before = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


def _check_index(folder: Path) -> None:
    files = json_object(folder / _INDEX).get("weight_map")
    named = files.values() if isinstance(files, Mapping) else [files]
    for file in named:
        plain = isinstance(file, str) and PurePosixPath(file).name == file and "\\" not in file
        if not plain or not str(file).endswith(".safetensors"):
            raise ArtifactError(
                f"{folder}/{_INDEX} names {file!r:.80}; expected the names of .safetensors files "
                "in the same folder."
            )


def _parts(config: Any) -> Iterator[Any]:
    """The config and those within it."""
    yield config
    for name in getattr(config, "sub_configs", ()):
        part = getattr(config, name, None)
        if hasattr(part, "model_type"):
            yield from _parts(part)


def _holds(value: object, field: str) -> bool:
    """Whether a field of this name is set anywhere within."""
    if isinstance(value, Mapping):
        if value.get(field) not in (None, False, {}, []):
            return True
        return any(_holds(part, field) for part in value.values())
    return isinstance(value, list) and any(_holds(part, field) for part in value)


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float))
