"""GOEN, the paper's method: class Gaussians on the unit sphere, three cues, a calibration head."""

import math
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.detectors._base import Detector
from goen.detectors._gaussians import ClassGaussians
from goen.detectors.calibration_head import (
    CalibrationHead,
    HeadConfig,
    load_head,
    probability_of_ood,
    train_head,
)
from goen.errors import UsageError
from goen.functional.cues import entropy, log_distance, max_inner_product
from goen.io.manifest import JsonValue, Manifest
from goen.io.tensors import Tensors
from goen.outputs import Outputs

CUES = ("log_distance", "similarity", "entropy")


@final
class Goen(Detector):
    """The calibration head's logit of three cues; without a head the log distance. High for OOD.

    The cues are m = [log(distance + 1), largest similarity to a class mean, entropy], with the
    squared Mahalanobis distance of the normalised feature to the nearest class. OOD images train
    the head; without them the first cue alone is the score.

    Paper: GOEN §5.2 and §5.3; the distance is Mahalanobis++ (Müller and Hein 2025) with a ridge.
    Departs from the paper: the score is the logit, of which the paper's u is the sigmoid.
    ``shrinkage`` is an addition.

    Args:
        feature: which of the outputs' features to measure; the last if not given.
        ridge: added to the diagonal of the covariance of the unit vectors.
        shrinkage: ``none``, ``oas`` or ``ledoit_wolf``; see ``ClassGaussians``.
        head: how the calibration head is trained.

    Example:
        >>> unit = torch.eye(2).repeat(20, 1) + 0.1 * torch.randn(40, 2)
        >>> outputs = Outputs(torch.zeros(40, 2), {"z": unit})
        >>> Goen().fit(outputs, torch.arange(40) % 2).score(outputs).shape
        torch.Size([40])
    """

    name: ClassVar[str] = "goen"
    gaussians_: ClassGaussians
    head_: CalibrationHead | None = None
    head_gaps_: tuple[float, ...] = ()
    """How far apart the head's mean u of OOD and ID images were, after each epoch of its training;
    not saved."""

    def __init__(
        self,
        *,
        feature: str | None = None,
        ridge: float = 1e-5,
        shrinkage: str = "none",
        head: HeadConfig = HeadConfig(),  # noqa: B008  (frozen)
    ) -> None:
        self.feature = feature
        self.ridge = ridge
        self.shrinkage = shrinkage
        self.head = head
        ClassGaussians("", ridge=ridge, shrinkage=shrinkage)  # valid, or an error now
        self.can_update = shrinkage != "ledoit_wolf"

    @classmethod
    def _setting(cls, name: str, value: JsonValue) -> object:
        if name == "head":
            return HeadConfig(**Manifest({name: value}).part(name).content)  # type: ignore[arg-type]
        return super()._setting(name, value)

    def calibrates(self, *, with_ood: bool) -> bool:
        """The head needs ID images beside the OOD images; without OOD images there is no head."""
        return with_ood

    def _set_apart(self, outputs: Outputs, labels: Tensor) -> tuple[Outputs, Tensor, Outputs]:
        raise UsageError("The calibration head needs held_out ID images beside the OOD images.")

    def _new(self, feature: str) -> ClassGaussians:
        return ClassGaussians(feature, ridge=self.ridge, shrinkage=self.shrinkage)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.gaussians_ = self._new(self.feature_name(outputs)).fit(outputs, labels)

    def _prepare(self) -> None:
        gaussians = self.gaussians_
        gaussians.whitening_, gaussians.means_  # noqa: B018  (computed when first asked for)

    def _calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs]) -> None:
        self.head_, self.head_gaps_ = None, ()
        if ood:
            cues = {name: self.cues(images) for name, images in ood.items()}
            self.head_, gaps = train_head(self.cues(held_out), cues, self.head)
            self.head_gaps_ = tuple(gaps)

    def _add(self, outputs: Outputs, labels: Tensor) -> None:
        if not hasattr(self, "gaussians_"):
            self.gaussians_ = self._new(self.feature_name(outputs))
        self.gaussians_.update(outputs, labels)
        self.head_, self.head_gaps_ = None, ()

    @property
    def cue_names(self) -> tuple[str, ...]:
        return CUES

    @property
    def cue_directions(self) -> tuple[int, ...]:
        return (1, -1, 1)

    def _cues(self, outputs: Outputs) -> Tensor:
        """The paper's m = [log(distance + 1), largest similarity, entropy], ``(N, 3)`` float64."""
        unit = self.gaussians_.rows(outputs)
        columns = [
            log_distance(self.gaussians_.whitening_.nearest(unit).distance),
            max_inner_product(unit, self.gaussians_.means_),
            entropy(outputs.logits),
        ]
        return torch.stack(columns, dim=1)

    def score_cues(self, cues: Tensor) -> Tensor:
        """The head's logit, or the log distance."""
        if self.head_ is None:
            return cues[:, 0]
        with torch.no_grad():
            logit: Tensor = self.head_(cues.float()).double()
        return logit

    def _score(self, outputs: Outputs) -> Tensor:
        return self.score_cues(self._cues(outputs))

    def probability(self, score: Tensor) -> Tensor | None:
        """The head's u with the compression of its targets undone."""
        return None if self.head_ is None else probability_of_ood(score)

    def state(self) -> dict[str, Tensor]:
        """The statistics and the head's weights."""
        state = {f"density.{k}": v for k, v in self.gaussians_.state().items()}
        head = {} if self.head_ is None else self.head_.state_dict()
        return state | {f"head.{k}": v for k, v in head.items()}

    def _load(self, tensors: Tensors) -> None:
        density, head = tensors.part("density."), tensors.part("head.")
        known = [*(f"density.{name}" for name in density), *(f"head.{name}" for name in head)]
        tensors.check_names(known)
        (feature,) = self.features
        self.gaussians_ = gaussians = self._new(feature).load_state(density)
        statistics = gaussians.statistics
        if (statistics.num_classes, statistics.dim) != (self.num_classes_, self.features_width):
            raise ValueError("its class Gaussians were fitted on another network")
        # No unit vector is farther than this from a mean of unit vectors.
        if not math.isfinite(4 * float(gaussians.whitening_.precision_chol.square().sum())):
            raise ValueError("its class Gaussians are too narrow: distances would be infinite")
        self.head_ = load_head(head) if head else None
