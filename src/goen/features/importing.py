"""Import of the libraries that are extras of goen."""

import importlib
from types import ModuleType

from goen.errors import ExtraMissing


def import_library(name: str, extra: str) -> ModuleType:
    """The module of this name.

    Args:
        name: of the module.
        extra: of goen that installs it.

    Raises:
        ExtraMissing: it is not installed, or its import fails, as beside a torchvision of another
            build than torch.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken torchvision raises a RuntimeError, or hides behind others
        raise missing_library(name, extra, error) from error


def missing_library(name: str, extra: str, error: BaseException) -> ExtraMissing:
    """The error for a library that cannot be imported: the reason at the bottom, and what to do."""
    chain = [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) and below not in chain:
        chain.append(below)
    reason = str(chain[-1]).strip().splitlines()[0] if str(chain[-1]).strip() else repr(error)
    if any("torchvision" in str(part) for part in chain) and not _is_absent(chain[-1]):
        return ExtraMissing(
            f"{name} cannot be imported, because torchvision cannot: {reason}. torchvision and "
            "torch must be of one build, both for the CPU or both for CUDA: install torchvision "
            "from where torch came from. transformers works without torchvision as well (pip "
            "uninstall torchvision); timm and pytorch-ood do not."
        )
    if not _is_absent(chain[-1]):
        return ExtraMissing(f"{name} is installed but cannot be imported: {reason}.")
    return ExtraMissing(f"{name} is not here ({reason}): pip install 'goen[{extra}]'.")


def _is_absent(error: BaseException) -> bool:
    return isinstance(error, ModuleNotFoundError)
