"""What every detector has in common: fit, score, and a state of plain tensors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from goen.errors import NotFittedError, UsageError, unknown
from goen.functional._rows import check_features, check_labels
from goen.outputs import Outputs


class Detector(ABC):
    """``Outputs`` in, scores out: ``(N,)`` float64, higher means more OOD.

    A method of one's own has a constructor that only stores its arguments, and two methods:
    ``_learn`` returns everything it takes from the training outputs as named tensors, ``_measure``
    turns outputs into scores by means of ``fitted_``. The rest is here: what comes in is checked (a
    name, or several, in an attribute ``feature`` must be among the outputs' features), fitting
    again forgets everything, and the state can be saved and loaded.

    Example:
        >>> class Norm(Detector):
        ...     needs_fit = False
        ...     def _learn(self, outputs, labels): return {}
        ...     def _measure(self, outputs): return -outputs.features["z"].norm(dim=1)
        >>> outputs = Outputs(torch.zeros(2, 2), {"z": torch.tensor([[3.0, 4.0], [0.0, 1.0]])})
        >>> Norm().score(outputs)
        tensor([-5., -1.], dtype=torch.float64)
    """

    needs_fit: ClassVar[bool] = True
    """Whether there is anything to learn; else a score needs no fit before it."""

    fitted_: Mapping[str, Tensor] | None = None
    """What was learnt, by name."""

    @abstractmethod
    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        """Everything that scoring needs of these outputs and their labels ``(N,)``."""

    @abstractmethod
    def _measure(self, outputs: Outputs) -> Tensor:
        """The scores ``(N,)`` of any float type."""

    @final
    def fit(self, outputs: Outputs, labels: Tensor) -> Self:
        """Forget everything and learn from these outputs."""
        self._check(outputs)
        check_labels(labels, len(outputs), outputs.logits.shape[1])
        if not len(outputs):
            raise UsageError(f"{type(self).__name__} was given no outputs to fit.")
        with torch.no_grad():
            self.fitted_ = dict(self._learn(outputs, labels))
        return self

    @final
    def score(self, outputs: Outputs) -> Tensor:
        """One number per image, ``(N,)`` float64; higher means more OOD.

        Raises:
            NotFittedError: nothing was fitted yet.
            UsageError: scores that are not finite, which says that the outputs were not.
        """
        self._check(outputs)
        if self.needs_fit and self.fitted_ is None:
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted. Call fit(outputs, labels) or load an "
                "artefact."
            )
        with torch.no_grad():
            scores = self._measure(outputs).to(torch.float64)
        if not bool(torch.isfinite(scores).all()):
            bad = int((~torch.isfinite(scores)).sum())
            raise UsageError(
                f"{bad} of {len(scores)} scores of {type(self).__name__} are not finite. Check the "
                "images and the network that gave these outputs."
            )
        return scores

    @final
    def _check(self, outputs: Outputs) -> None:
        check_features(outputs.logits)
        wanted = getattr(self, "feature", ())
        for name in (wanted,) if isinstance(wanted, str) else wanted:
            if name not in outputs.features:
                raise unknown("feature", name, outputs.features)

    @final
    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt, for an artefact."""
        if self.needs_fit and self.fitted_ is None:
            raise NotFittedError(f"This {type(self).__name__} is not fitted: nothing to save.")
        return dict(self.fitted_ or {})

    @final
    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        """Take what ``state`` gave."""
        self.fitted_ = dict(state)
        return self
