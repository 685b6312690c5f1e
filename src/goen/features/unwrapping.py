"""The model inside ``torch.compile``, ``DataParallel`` and the like, and the names of its parts."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from goen.errors import UsageError

# torch.compile's wrapper has one child of this name; its class is not public.
_COMPILED = "_orig_mod"


def unwrap(model: nn.Module) -> nn.Module:
    """The model that ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel`` wraps.

    Features are taken by hooks. A compiled program runs without hooks that came after it, and
    ``DataParallel`` runs copies of the model in other threads.

    Raises:
        UsageError: no torch module, or one that takes no hooks.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> unwrap(nn.DataParallel(model)) is model
        True
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "The model was made by torch.jit, whose modules allow no hooks, so that no features "
            "can be taken. Give the model that was scripted or traced."
        )
    if not isinstance(model, nn.Module):
        raise UsageError(f"The model is a torch nn.Module; got {type(model).__name__}.")
    compiled = model._modules.get(_COMPILED)
    if compiled is not None:
        return unwrap(compiled)
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        return unwrap(model.module)
    return model


def match_names(names: Collection[str], own: Iterable[str]) -> dict[str, str]:
    """For each name of a module or weight, the model's own name of the same one.

    They differ where one of the two models was wrapped: ``module.`` comes first or is missing, or
    ``_orig_mod.`` stands anywhere. A name without a counterpart stays as it is.

    Args:
        names: of another copy of the model, such as the keys of a saved state dictionary.
        own: of this model.

    Example:
        >>> match_names(["module.stem._orig_mod.0", "fc"], ["stem.0", "fc"])
        {'module.stem._orig_mod.0': 'stem.0', 'fc': 'fc'}
    """
    asked, known = set(names), set(own)
    free = _by_plain_name(known - asked)
    matched = {name: name for name in names}
    for plain, wrapped in _by_plain_name(asked - known).items():
        if len(wrapped) == len(free[plain]) == 1:  # else there is no telling which is which
            matched[wrapped[0]] = free[plain][0]
    return matched


def _by_plain_name(names: Iterable[str]) -> Mapping[str, list[str]]:
    groups = defaultdict(list)
    for name in names:
        groups[_plain(name)].append(name)
    return groups


def _plain(name: str) -> str:
    parts = [part for part in name.split(".") if part != _COMPILED]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)
