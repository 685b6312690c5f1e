"""A detector again, of what a gate's folder keeps of it."""

import json
from typing import TypeVar

from torch import Tensor

from goen.detectors import Detector, load_detector
from goen.detectors.registry import detector_manifest
from goen.io.manifest import Manifest
from goen.io.tensors import Tensors

D = TypeVar("D", bound=Detector)


def reloaded(detector: D, changed: dict[str, Tensor] | None = None, *, without: str = "") -> D:
    """The detector of its manifest, as JSON keeps it, and its tensors.

    Args:
        detector: fitted.
        changed: tensors in place of its own, or beside them.
        without: a tensor that is left out.
    """
    state = {**detector.state(), **(changed or {})}
    state.pop(without, None)
    manifest = Manifest(json.loads(json.dumps(detector_manifest(detector))))
    loaded = load_detector(manifest, Tensors(state))
    assert type(loaded) is type(detector)
    return loaded
