"""torchvision for tests, also where its compiled operators do not load beside this torch.

PyPI's torchvision is built for CUDA. Beside a CPU build of torch its library cannot be loaded, so
that ``import torchvision`` ends in "operator torchvision::nms does not exist", and with it the
import of timm and of the models of transformers. Their classifiers need no such operator: it is
enough that two of them are declared. Where torchvision imports by itself nothing is declared.

goen does not do this for its users: it says what is wrong, see goen.features.importing.
"""

from functools import cache
from types import ModuleType

import torch

# What torchvision.ops calls them with; nothing computes them.
_MISSING = ("nms", "qnms")
_TAKES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def import_torchvision() -> ModuleType:
    """The module, imported."""
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in _MISSING:
            declared.define(f"{name}{_TAKES}")
        import torchvision

        torchvision.declared_for_tests = declared  # they are there as long as it is
    return torchvision
