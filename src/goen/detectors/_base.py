"""What all detectors share: ``fit``, ``score`` and cues."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn

from goen.detectors._bank import NearestImages
from goen.detectors._state import Expected, Stored
from goen.errors import UsageError
from goen.outputs import Outputs

__all__ = ["Detector", "Expected"]


class Detector(Stored, ABC):
    """``Outputs`` in, scores out: ``(N,)`` float64, higher means more OOD.

    To write one, store the constructor's keyword arguments under their own names and implement two
    methods: ``_fit`` keeps what it learns as tensors in attributes whose names end in ``_``, and
    ``_score`` turns outputs into scores by means of them. Then it can be compared, be the detector
    of a gate, be saved with it, and be exported if torch can trace ``_score``. A detector that
    reads features has an attribute ``feature``: a name, several names, or ``None`` for the last
    feature of the outputs that it is fitted on; these are finite when ``_fit`` is called.

    A detector with several *cues* (named quantities that its score combines) implements ``_cues``,
    ``score_cues`` and ``cue_names`` as well; any other has one cue, its score. One that needs ID
    images beside the training images, or uses OOD images, implements ``_calibrate``.

    Example:
        >>> class Mean(Detector):
        ...     name = "mean"
        ...     def __init__(self, *, feature=None): self.feature = feature
        ...     def _fit(self, outputs, labels): self.mean_ = self.feature_rows(outputs).mean(dim=0)
        ...     def _score(self, outputs): return self.feature_rows(outputs) @ -self.mean_
        >>> outputs = Outputs(torch.zeros(2, 2), {"z": torch.tensor([[3.0, 4.0], [3.0, 0.0]])})
        >>> Mean().fit(outputs, torch.tensor([0, 1])).score(outputs)
        tensor([-17.,  -9.], dtype=torch.float64)
    """

    name: ClassVar[str]
    """Of the method, in manifests and as the name of its only cue; else made from the class's."""

    needs_gradient: ClassVar[bool] = False
    """Whether it scores outputs of ``prepare_network``, which takes gradients of the network."""

    needs_ood: ClassVar[bool] = False
    """Whether OOD images must take part in its fit."""

    can_update: bool = False
    """Whether ``update`` adds training images to what was fitted; it implements ``_add``."""

    saved: ClassVar[bool] = True
    """Whether its state can be saved and exported."""

    def require_library(self) -> None:
        """Raise an ``ExtraMissing`` if its fit needs a library that is not here."""

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        """Learn from these outputs and their labels ``(N,)``."""
        if self.can_update:
            self._add(outputs, labels)

    def _add(self, outputs: Outputs, labels: Tensor) -> None:
        """Learn from further outputs and their labels ``(N,)``, and forget a calibration."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    @abstractmethod
    def _score(self, outputs: Outputs) -> Tensor:
        """The scores ``(N,)`` of any float type."""

    def _cues(self, outputs: Outputs) -> Tensor:
        """The cues ``(N, K)`` of any float type."""
        scores, by = self._score(outputs), f"{type(self).__name__}._score"
        if torch.compiler.is_compiling():
            return scores[:, None]
        if not isinstance(scores, Tensor) or scores.shape != (len(outputs),):
            is_tensor = isinstance(scores, Tensor)
            got = f"a tensor {tuple(scores.shape)}" if is_tensor else type(scores).__name__
            raise UsageError(
                f"{by} should give one score per image, a tensor ({len(outputs)},), got {got}."
            )
        return scores[:, None]

    def score_cues(self, cues: Tensor) -> Tensor:
        """Score ``(N,)`` float64 of cues ``(N, K)``."""
        return cues[:, 0]

    def calibrates(self, *, with_ood: bool) -> bool:
        """Whether its fit needs ID images that are not training images."""
        return False

    @property
    def uses_ood(self) -> bool:
        """Whether OOD images can take part in its fit."""
        return self.calibrates(with_ood=True)

    def _calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs]) -> None:
        """Learn from ID images that are not training images, and from OOD images by name."""

    def _set_apart(self, outputs: Outputs, labels: Tensor) -> tuple[Outputs, Tensor, Outputs]:
        """The training outputs and labels, and some set apart to calibrate on."""
        return outputs, labels, outputs

    def prepare_network(self, network: nn.Module) -> nn.Module:
        """The network whose outputs it scores."""
        return network

    @property
    def cue_names(self) -> tuple[str, ...]:
        """K names, in the order of the columns of ``cues``."""
        return (self.name,)

    @property
    def cue_weights(self) -> Mapping[str, float]:
        """The weight of each cue in the score, where the score is a weighted sum."""
        return {}

    @property
    def description(self) -> str:
        """What the score is, in a sentence or two."""
        return (type(self).__doc__ or "").partition("\n")[0]

    @property
    def cue_directions(self) -> tuple[int, ...]:
        """Of each cue 1, or -1 where a low value is unusual."""
        return (1,) * len(self.cue_names)

    @property
    def chosen(self) -> "Detector":
        """The detector of a gate that was fitted with it: itself, unless it chooses another."""
        return self

    @property
    @final
    def has_probability(self) -> bool:
        """Whether OOD images took part in the fit, so that ``probability`` is known."""
        return self.probability(torch.zeros(0, dtype=torch.float64)) is not None

    def probability(self, score: Tensor) -> Tensor | None:
        """P(OOD) of scores ``(N,)`` at 50 % prevalence; ``None`` without OOD images in the fit."""
        return None

    def calibrated(self, outputs: Outputs) -> Outputs:
        """The outputs whose softmax is this method's class probabilities: most leave them alone."""
        return outputs

    def nearest(self, outputs: Outputs, count: int) -> Mapping[str, NearestImages]:
        """The ``count`` nearest training images in each layer; empty if it keeps no images."""
        return {}

    @property
    def num_kept(self) -> tuple[int, int]:
        """How many training images ``nearest`` chooses from, and how many there were."""
        return 0, 0

    @final
    def fit(
        self,
        outputs: Outputs,
        labels: Tensor,
        *,
        held_out: Outputs | None = None,
        ood: Mapping[str, Outputs] | None = None,
    ) -> Self:
        """Forget everything and fit these outputs; a fit that fails changes nothing.

        Args:
            outputs: of the training images.
            labels: ``(N,)``.
            held_out: of ID images that trained nothing, for detectors that ``calibrates``. Without
                them such a detector sets some training images apart.
            ood: of each OOD set, by name, for detectors that can use OOD images.

        Raises:
            UsageError: outputs that do not belong together, or lack what the method reads.
            FitError: outputs that the method cannot be fitted on.
        """
        with self._unchanged_by_errors():
            self.forget()
            self._begin(outputs, labels)
            calibrating = self.calibrates(with_ood=bool(ood))
            if calibrating and held_out is None:
                outputs, labels, held_out = self._set_apart(outputs, labels)
            self._learn(outputs, labels)
            if calibrating and held_out is not None:
                self.calibrate(held_out, ood)
        return self

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        earlier = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(earlier)
            raise

    @final
    def fit_training(self, outputs: Outputs, labels: Tensor) -> Self:
        """The part of ``fit`` that reads training images; ``calibrate`` is the other."""
        self.forget()
        self._begin(outputs, labels)
        self._learn(outputs, labels)
        return self

    @final
    def _learn(self, outputs: Outputs, labels: Tensor) -> None:
        with torch.no_grad():
            self._fit(outputs, labels)
            self._prepare()

    @final
    def calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs] | None = None) -> Self:
        """Calibrate a fitted detector with ID images that it was not fitted on; see ``fit``."""
        for part in (held_out, *(ood or {}).values()):
            self._check(part)
        self._calibrate(held_out, ood or {})
        return self

    keeps_calibration: ClassVar[bool] = False
    """Whether ``recalibrate`` needs only what is new."""

    ood_cues_: Mapping[str, Tensor] = MappingProxyType({})
    """The cues of the OOD images that it was calibrated with, as far as they are kept."""

    def recalibrate(self, held_out: Outputs | None, ood: Mapping[str, Outputs]) -> None:
        """Calibrate again; with ``keeps_calibration`` what is not given stays as it was."""
        assert held_out is not None, "only a detector that keeps its calibration goes without"
        self.calibrate(held_out, ood)

    @final
    def update(self, outputs: Outputs, labels: Tensor) -> Self:
        """Add training images, in any chunks; what was calibrated is forgotten.

        Raises:
            UsageError: this method cannot be fitted in parts.
        """
        if not self.can_update:
            raise UsageError(
                f"{type(self).__name__} is fitted on all training images at once: fit it again."
            )
        with self._unchanged_by_errors():
            self._begin(outputs, labels)
            self._add(outputs, labels)
        return self

    @final
    def score(self, outputs: Outputs) -> Tensor:
        """One number per image, ``(N,)`` float64; higher means more OOD.

        Raises:
            NotFittedError: nothing was fitted yet.
            UsageError: a score is NaN or infinite, because the outputs are.
        """
        scores = self.score_cues(self.cues(outputs))
        bad = int((~torch.isfinite(scores)).sum())
        if bad:
            raise UsageError(
                f"{bad} of {len(scores)} scores of {type(self).__name__} are not finite. Check the "
                "images and the network that gave these outputs."
            )
        return scores

    @final
    def cues(self, outputs: Outputs) -> Tensor:
        """The cues of each image, ``(N, K)`` float64."""
        if not torch.compiler.is_compiling():  # a program is traced with outputs that were checked
            self._check(outputs)
        with torch.no_grad():
            return self._cues(outputs).to(torch.float64)
