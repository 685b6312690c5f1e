"""Detectors of pytorch-ood as detectors of goen."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor

from goen.detectors._base import Detector
from goen.errors import UsageError
from goen.features.importing import import_library
from goen.outputs import Outputs

LOGITS = "logits"


@final
class PytorchOod(Detector):
    """A detector of pytorch-ood on goen's outputs; higher means more OOD in both libraries.

    Works with any detector that has ``fit_features`` and ``predict_features``, or ``fit_logits``
    and ``predict_logits``. It keeps its own precision, and its state cannot be saved.

    Args:
        detector: from pytorch-ood 0.4 or later, or anything with the same methods.
        feature: which of the outputs' features it reads, the last if not given; ``logits`` for the
            logits.
    """

    name: ClassVar[str] = "pytorch_ood"
    saved = False

    def __init__(self, detector: Any, *, feature: str | None = None) -> None:
        self.detector = detector
        self.feature = () if feature == LOGITS else feature
        self._kind = LOGITS if feature == LOGITS else "features"
        for method in (f"fit_{self._kind}", f"predict_{self._kind}"):
            if not callable(getattr(detector, method, None)):
                raise UsageError(
                    f"{type(detector).__name__} has no {method}, so it cannot read "
                    f"{feature or 'features'}. Only detectors that work on features or on logits "
                    "can be used."
                )

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        getattr(self.detector, f"fit_{self._kind}")(self._read(outputs), labels)

    def _score(self, outputs: Outputs) -> Tensor:
        found = getattr(self.detector, f"predict_{self._kind}")(self._read(outputs))
        return torch.as_tensor(found, device="cpu")

    def _read(self, outputs: Outputs) -> Tensor:
        return outputs.logits if self._kind == LOGITS else self.feature_rows(outputs)


def pytorch_ood(name: str, *, feature: str | None = None, **arguments: Any) -> PytorchOod:
    """The pytorch-ood detector of this class name, ready to ``fit``.

    Args:
        name: a class in ``pytorch_ood.detector``, such as ``KNN`` or ``EnergyBased``.
        feature: as for ``PytorchOod``; if not given, the last feature for detectors that read
            features, else the logits.
        arguments: for its constructor; the model it asks for is ``None``: goen has run it already.

    Raises:
        ExtraMissing: pytorch-ood is not here or cannot be imported.
        UsageError: it has no such detector, or one that needs more than that.
    """
    classes = import_library("pytorch_ood.detector", "bridge")
    if not hasattr(classes, name):
        raise UsageError(f"pytorch_ood.detector has no {name!r}.")
    chosen = getattr(classes, name)
    if feature is None:
        feature = None if hasattr(chosen, "predict_features") else LOGITS
    try:
        detector = chosen(None, **arguments)
    except TypeError as error:
        raise UsageError(
            f"{name} cannot be made of its name alone ({error}). Make it yourself and wrap it: "
            "PytorchOod(detector, feature=...)."
        ) from error
    return PytorchOod(detector, feature=feature)
