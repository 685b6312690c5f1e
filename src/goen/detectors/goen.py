"""GOEN, the paper's method: class Gaussians on the unit sphere, three cues, a calibration head."""

import math
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_choice, check_number
from goen.detectors._base import Detector
from goen.detectors._gaussians import labelled_rows
from goen.detectors.calibration_head import (
    CalibrationHead,
    HeadConfig,
    HeadEpoch,
    load_head,
    probability_of_ood,
    train_head,
)
from goen.errors import UsageError
from goen.functional._rows import blocks
from goen.functional.covariance import ledoit_wolf_shrinkage, oas_shrinkage, tied_covariance
from goen.functional.cues import entropy, log_distance, max_inner_product, normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import Whitening, whitener
from goen.io.limits import CLASSES
from goen.io.manifest import JsonValue, Manifest
from goen.io.tensors import Tensors
from goen.outputs import Outputs

# Training images of one class: so many that their sums are exact in float64.
_MOST_ROWS = 2**53 // CLASSES
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
        shrinkage: ``none``, or towards a multiple of the identity by the share that ``oas`` (Chen
            et al. 2010) or ``ledoit_wolf`` (2004) finds. Ledoit and Wolf's needs the features
            twice, so there is no ``update`` with it.
        head: how the calibration head is trained.

    Example:
        >>> unit = torch.eye(2).repeat(20, 1) + 0.1 * torch.randn(40, 2)
        >>> outputs = Outputs(torch.zeros(40, 2), {"z": unit})
        >>> Goen().fit(outputs, torch.arange(40) % 2).score(outputs).shape
        torch.Size([40])
    """

    name: ClassVar[str] = "goen"
    statistics_: ClassStatistics
    share_: float = 0.0
    head_: CalibrationHead | None = None
    head_epochs_: tuple[HeadEpoch, ...] = ()
    """The head after each epoch of its training; not saved."""

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
        check_number("ridge", ridge, at_least=0)
        check_choice("shrinkage", shrinkage, ("none", "oas", "ledoit_wolf"))
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

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        for block in blocks(len(outputs)):
            self._add(outputs[block], labels[block])
        if self.shrinkage == "ledoit_wolf":
            rows = labelled_rows(outputs, labels, self._unit_rows)
            self.share_ = ledoit_wolf_shrinkage(self.statistics_, rows)

    def _add(self, outputs: Outputs, labels: Tensor) -> None:
        unit = self._unit_rows(outputs)
        if not hasattr(self, "statistics_"):
            self.statistics_ = ClassStatistics(self.num_classes_, unit.shape[1], device=unit.device)
        self.statistics_.update(unit, labels)
        vars(self).pop("_whitening", None)
        self.head_, self.head_epochs_ = None, ()

    def class_sums(self) -> tuple[Tensor, Tensor]:
        """Those of the class means."""
        counts = self.statistics_.counts_
        return self.statistics_.means_.nan_to_num(0.0) * counts[:, None], counts

    def add_classes(self, num_classes: int) -> None:
        super().add_classes(num_classes)
        self.statistics_ = self.statistics_.with_classes(num_classes)

    def _unit_rows(self, outputs: Outputs) -> Tensor:
        return normalise(self.feature_rows(outputs))

    def _prepare(self) -> None:
        self.whitening_  # noqa: B018  (computed when first asked for)

    @property
    def whitening_(self) -> Whitening:
        """The fitted distance, computed when first asked for after an update."""
        if not hasattr(self, "_whitening"):
            means = self.statistics_.means_
            share = oas_shrinkage(self.statistics_) if self.shrinkage == "oas" else self.share_
            cov = tied_covariance(self.statistics_, self.ridge, shrinkage=share)
            self._means = means[~torch.isnan(means).all(dim=1)]
            self._whitening = whitener(means, cov)
        return self._whitening

    def _calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs]) -> None:
        self.head_, self.head_epochs_ = None, ()
        if ood:
            cues = {name: self.cues(images) for name, images in ood.items()}
            self.head_, epochs = train_head(self.cues(held_out), cues, self.head)
            self.head_epochs_ = tuple(epochs)

    @property
    def cue_names(self) -> tuple[str, ...]:
        return CUES

    @property
    def cue_directions(self) -> tuple[int, ...]:
        return (1, -1, 1)

    def _cues(self, outputs: Outputs) -> Tensor:
        """The paper's m = [log(distance + 1), largest similarity, entropy], ``(N, 3)`` float64."""
        unit = self._unit_rows(outputs)
        columns = [
            log_distance(self.whitening_.nearest(unit).distance),
            max_inner_product(unit, self._means),
            entropy(outputs.logits),
        ]
        return torch.stack(columns, dim=1)

    def score_cues(self, cues: Tensor) -> Tensor:
        """The head's logit, or the log distance."""
        return cues[:, 0] if self.head_ is None else self.head_.score(cues)

    def _score(self, outputs: Outputs) -> Tensor:
        return self.score_cues(self._cues(outputs))

    def probability(self, score: Tensor) -> Tensor | None:
        """The head's u with the compression of its targets undone."""
        return None if self.head_ is None else probability_of_ood(score)

    def state(self) -> dict[str, Tensor]:
        """The statistics and the head's weights."""
        state = {f"density.{k}": v for k, v in self.statistics_.state().items()}
        state["density.shrinkage"] = torch.tensor([self.share_], dtype=torch.float64, device="cpu")
        head = {} if self.head_ is None else self.head_.state_dict()
        return state | {f"head.{k}": v for k, v in head.items()}

    def _load(self, tensors: Tensors) -> None:
        density, head = tensors.part("density."), tensors.part("head.")
        known = [*(f"density.{name}" for name in density), *(f"head.{name}" for name in head)]
        tensors.check_names(known)
        (width,) = (self.widths_ or {}).values()
        shape, longest = (self.num_classes_, width), 1 + 1e-6
        density.check_names(["counts", "mean_high", "mean_low", "within_scatter", "shrinkage"])
        density.floats("mean_high", shape, low=-longest, high=longest)
        density.integers("counts", shape[:1], low=0, high=_MOST_ROWS)
        density.floats("mean_low", shape)
        density.floats("within_scatter", (width, width))
        self.share_ = float(density.floats("shrinkage", (1,), low=0.0, high=1.0))
        self.statistics_ = ClassStatistics.from_state(density)
        vars(self).pop("_whitening", None)
        # No unit vector is farther than this from a mean of unit vectors.
        if not math.isfinite(4 * float(self.whitening_.precision_chol.square().sum())):
            raise ValueError("its class Gaussians are too narrow: distances would be infinite")
        self.head_ = load_head(head) if head else None
