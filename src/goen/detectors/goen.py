"""GOEN, the paper's method: class Gaussians on the unit sphere, three cues, a calibration head."""

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn

from goen.detectors._base import CueDetector, column_p_values
from goen.detectors._gaussians import ClassGaussians
from goen.detectors._tracing import TracedDistance, traced_entropy, traced_unit
from goen.detectors.calibration_head import (
    CalibrationHead,
    HeadConfig,
    load_head,
    probability_of_ood,
    train_head,
)
from goen.errors import NotFittedError, UsageError
from goen.functional._rows import check_features
from goen.functional.cues import entropy, log_distance, max_inner_product
from goen.functional.logits import check_same_classes
from goen.outputs import Outputs
from goen.runs.manifest import JsonObject, Manifest
from goen.runs.tensors import Tensors

CUES = ("log_distance", "similarity", "entropy")
# No cue is larger: the logarithm of the largest float64 is 710.
_LARGEST = 1000.0


@final
class Goen(CueDetector):
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

    kind: ClassVar[str] = "goen"

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
        ClassGaussians("", shrinkage=shrinkage)  # a known one, or an error now
        self.gaussians_: ClassGaussians | None = None
        self.head_: CalibrationHead | None = None
        self.id_cues_: Tensor | None = None

    def fit(
        self,
        outputs: Outputs,
        labels: Tensor,
        *,
        held_out: Outputs | None = None,
        ood: Mapping[str, Outputs] | None = None,
    ) -> Self:
        """Forget everything and fit these outputs.

        Args:
            outputs: of the training images.
            labels: ``(N,)``.
            held_out: of ID images that trained nothing: the head's ID side, and what each cue's
                p-value is computed against.
            ood: of each OOD set that trains the head.

        Raises:
            UsageError: OOD images without held-out ID images.
        """
        if ood and held_out is None:
            raise UsageError("The calibration head needs held_out ID images beside the OOD images.")
        self._check_fit(outputs, labels)
        gaussians = self._new(outputs).fit(outputs, labels)
        id_cues = None if held_out is None else _cues(gaussians, held_out)
        head = None
        if ood and id_cues is not None:
            ood_cues = {name: _cues(gaussians, images) for name, images in ood.items()}
            head, _ = train_head(id_cues, ood_cues, self.head)
        self.gaussians_, self.head_, self.id_cues_ = gaussians, head, id_cues
        return self

    def update(self, outputs: Outputs, labels: Tensor) -> Self:
        """Add training images to the Gaussians, in any chunks; a head or ID cues are dropped."""
        self.gaussians_ = (self.gaussians_ or self._new(outputs)).update(outputs, labels)
        self.head_, self.id_cues_ = None, None
        return self

    def _new(self, outputs: Outputs) -> ClassGaussians:
        feature = self.feature or outputs.last_feature
        return ClassGaussians(feature, ridge=self.ridge, shrinkage=self.shrinkage)

    def with_head(self, head: CalibrationHead | None, id_cues: Tensor | None) -> Self:
        """A copy of the Gaussians with a head trained elsewhere, and the ID cues for p-values.

        Args:
            head: calibrated with OOD images, or none.
            id_cues: ``(n, 3)`` of ID images that trained nothing; with them cues have p-values.
        """
        other = type(self)(
            feature=self.feature, ridge=self.ridge, shrinkage=self.shrinkage, head=self.head
        )
        other.gaussians_, other.head_, other.id_cues_ = deepcopy(self.gaussians), head, id_cues
        return other

    @property
    def gaussians(self) -> ClassGaussians:
        """The fitted Gaussians.

        Raises:
            NotFittedError: nothing was fitted yet.
        """
        if self.gaussians_ is None:
            raise NotFittedError(
                "This Goen is not fitted. Call fit(outputs, labels), or take Goen.from_state(...) "
                "of a saved one."
            )
        return self.gaussians_

    @property
    def cue_names(self) -> tuple[str, ...]:
        return CUES

    @property
    def cue_directions(self) -> tuple[int, ...]:
        return (1, -1, 1)

    @property
    def features(self) -> tuple[str, ...]:
        return (self.gaussians.feature,)

    @property
    def has_probability(self) -> bool:
        return self.head_ is not None

    @property
    def has_cue_p_values(self) -> bool:
        return self.id_cues_ is not None

    def cues(self, outputs: Outputs) -> Tensor:
        """The paper's m = [log(distance + 1), largest similarity, entropy], ``(N, 3)`` float64."""
        return _cues(self.gaussians, outputs)

    def score_cues(self, cues: Tensor) -> Tensor:
        """The head's logit, or the log distance."""
        return score_goen_cues(cues, self.head_)

    def probability(self, score: Tensor) -> Tensor | None:
        """The head's u with the compression of its targets undone."""
        return None if self.head_ is None else probability_of_ood(score)

    def cue_p_values(self, cues: Tensor) -> Tensor | None:
        """Each cue against those of the ID images; a low similarity is unusual."""
        if self.id_cues_ is None:
            return None
        upwards = cues.new_tensor(self.cue_directions)
        distance, similarity, surprise = self._id_columns
        return column_p_values(cues * upwards, (distance, -similarity[::-1], surprise))

    def traceable(self) -> nn.Module:
        return _Traced(self)

    def config(self) -> JsonObject:
        """The Gaussians' settings and whether there is a head."""
        gaussians = self.gaussians
        return {
            "density": {
                "feature": gaussians.feature,
                "ridge": gaussians.ridge,
                "shrinkage": gaussians.shrinkage,
                "condition_number": gaussians.whitening_.condition_number,
            },
            "head": None if self.head_ is None else {"cues": list(CUES)},
        }

    def state(self) -> dict[str, Tensor]:
        """The statistics, the head's weights, the ID images' cues."""
        state = {f"density.{k}": v for k, v in self.gaussians.state().items()}
        if self.head_ is not None:
            state |= {f"head.{k}": v for k, v in self.head_.state_dict().items()}
        if self.id_cues_ is not None:
            state["id_cues"] = self.id_cues_
        return state

    @classmethod
    def from_state(cls, config: JsonObject, state: Mapping[str, Tensor]) -> Self:
        """The detector again; a ``ValueError`` where the two disagree."""
        whole, tensors = Manifest(config, "scorer."), Tensors.of(state)
        whole.check_names(["kind", "density", "head"])
        settings = whole.part("density")
        settings.check_names(["feature", "ridge", "shrinkage", "condition_number"])
        if "condition_number" in settings and settings.number("condition_number") < 1:
            raise ValueError(
                f"its {settings.prefix}condition_number should be at least 1, got "
                f"{settings.number('condition_number')}"
            )
        detector = cls(
            feature=settings.text("feature"),
            ridge=settings.number("ridge"),
            shrinkage=settings.text("shrinkage"),
        )
        gaussians = ClassGaussians(
            settings.text("feature"), ridge=detector.ridge, shrinkage=detector.shrinkage
        )
        detector.gaussians_ = gaussians.load_state(tensors.part("density."))
        head = tensors.part("head.")
        if ("head" in whole) != bool(head):
            raise ValueError("its manifest and its tensors disagree about a head")
        if head:
            whole.part("head").check_names(["cues"])
            if whole.part("head").texts("cues") != CUES:
                raise ValueError(f"its scorer.head.cues should be {', '.join(CUES)}")
            detector.head_ = load_head(head)
        known = [name for name in tensors if name.startswith(("density.", "head."))]
        tensors.check_names([*known, "id_cues"])
        if "id_cues" in tensors:
            shape = ("images", len(CUES))
            detector.id_cues_ = tensors.floats("id_cues", shape, low=-_LARGEST, high=_LARGEST)
        return detector

    def check_network(self, num_classes: int, widths: Mapping[str, int]) -> None:
        statistics = self.gaussians.statistics
        expected = (num_classes, widths.get(self.gaussians.feature))
        if (statistics.num_classes, statistics.dim) != expected:
            raise ValueError("its class Gaussians were fitted on another network")
        whitening = self.gaussians.whitening_
        # No unit vector is farther than this from a mean of unit vectors.
        if not math.isfinite(4 * float(whitening.precision_chol.square().sum())):
            raise ValueError("its class Gaussians are too narrow: distances would be infinite")


def _cues(gaussians: ClassGaussians, outputs: Outputs) -> Tensor:
    check_features(outputs.logits)
    outputs.check_counts()
    check_same_classes(outputs.logits, gaussians.statistics.num_classes, "Goen")
    unit = gaussians.rows(outputs)
    columns = [
        log_distance(gaussians.whitening_.nearest(unit).distance),
        max_inner_product(unit, gaussians.means_),
        entropy(outputs.logits),
    ]
    return torch.stack(columns, dim=1)


def score_goen_cues(cues: Tensor, head: CalibrationHead | None) -> Tensor:
    """The head's logit of cues ``(N, 3)``, ``(N,)`` float64; without a head the log distance."""
    if head is None:
        return cues[:, 0]
    with torch.inference_mode():
        logit: Tensor = head(cues.float()).double()
    return logit


class _Traced(nn.Module):
    """See ``CueDetector.traceable``."""

    means: Tensor

    def __init__(self, detector: Goen) -> None:
        super().__init__()
        gaussians = detector.gaussians
        self.feature = gaussians.feature
        self.distance = TracedDistance(gaussians.feature, gaussians.whitening_)
        self.register_buffer("means", gaussians.means_)
        self.head = detector.head_

    def forward(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        distance: Tensor = self.distance(outputs)
        unit = traced_unit(outputs.features[self.feature])
        similarity = (unit @ self.means.T).amax(dim=1)
        cues = torch.stack([distance, similarity, traced_entropy(outputs.logits)], dim=1)
        score = distance if self.head is None else self.head(cues.float()).double()
        return cues, score
