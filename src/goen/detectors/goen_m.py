"""goen-m: a cue per layer and some of the classifier, fused so that the score rises with each.

A further cue of the logits is an entry in ``_LOGIT_CUES`` and its range in ``_cue_ends``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, Self, cast, final

import numpy as np
import torch
from torch import Tensor

from goen.checks import check_choice, check_number
from goen.detectors._bank import ROWS, Bank, NearestImages
from goen.detectors._base import Detector
from goen.errors import FitError, NotFittedError, UsageError, warn
from goen.functional.cues import entropy
from goen.functional.fusion import fuse
from goen.functional.logits import energy_score
from goen.io.tensors import Tensors
from goen.outputs import Outputs

LogitCue = Literal["entropy", "energy"]
LAST = "last"
"""In place of layers: the last feature of the outputs."""
# By how much saved cues may leave their range, by rounding.
_CUE_TOLERANCE = 1e-6
# Far above every logit that a trained network gives, far below what overflows.
_LARGEST_ENERGY = 1e30


_LOGIT_CUES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "entropy": entropy,
    "energy": energy_score,
}


@final
class GoenM(Detector):
    r"""The mean of standardised cues, or their sum with fitted weights; high for OOD.

    The cues are the distance from the image's unit vector to its near neighbours among training
    images, one per layer, and of a classifier the entropy of the softmax, its energy, or both. Each
    is standardised by its mean and standard deviation on ID images that fitted nothing. Without OOD
    images the score is their mean: how many standard deviations further out than usual. With them
    the weights are a logistic regression's, none below zero, see ``goen.functional.fusion.fuse``:
    the score is then the logit of the probability of being OOD where half of the images are, every
    kind of OOD counting the same.

    An image that is farther out in every cue never scores lower. A free head can overfit the OOD
    images it was trained with and score others as ordinary; this score cannot.

    Paper: none, it is ours; docs/methods/goen-m.md describes how it was chosen. The distance is
    that of Sun et al. 2022, "Out-of-Distribution Detection with Deep Nearest Neighbors", within a
    sample of the training images; see ``Bank``.

    Args:
        layers: the features to measure; all of the outputs it is fitted on if not given, and
            ``"last"`` for the last of them alone.
        rows: how many training images to keep.
        logit_cues: ``entropy`` of the softmax, ``energy`` (minus the log-sum-exp of the logits),
            both, or none where the logits are no classifier's.

    Example:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator ...>
        >>> outputs = Outputs(torch.zeros(40, 2), {"deep": torch.randn(40, 3) + 5})
        >>> held_out = Outputs(torch.zeros(20, 2), {"deep": torch.randn(20, 3) + 5})
        >>> detector = GoenM().fit(outputs, torch.arange(40) % 2, held_out=held_out)
        >>> detector.cue_names, detector.weights_.tolist()
        (('deep', 'entropy'), [0.5, 0.5])
    """

    name: ClassVar[str] = "goen_m"
    can_update = True
    bank_: Bank
    id_cues_: Tensor | None = None
    mean_: Tensor
    std_: Tensor
    weights_: Tensor
    bias_: Tensor

    def __init__(
        self,
        layers: Sequence[str] | Literal["last"] | None = None,
        *,
        rows: int = ROWS,
        logit_cues: Sequence[LogitCue] = ("entropy",),
    ) -> None:
        self.logit_cues = _checked_logit_cues(logit_cues)
        self.layers: tuple[str, ...] | Literal["last"] | None = None
        if layers is not None:
            self.layers = "last" if layers == LAST else _checked(layers, self.logit_cues)
        self.rows = rows
        check_number("rows", rows, whole=True, at_least=1)

    @property
    def feature(self) -> tuple[str, ...] | None:
        """The layers, under the name that all detectors have for it."""
        return self.layers if isinstance(self.layers, tuple) else None

    @feature.setter
    def feature(self, layers: Sequence[str]) -> None:
        self.layers = _checked(layers, self.logit_cues)

    @property
    def reads_all_features(self) -> bool:  # type: ignore[override]
        """Unless it reads the last."""
        return self.layers != LAST

    def calibrates(self, *, with_ood: bool) -> bool:
        """ID images standardise the cues."""
        return True

    def _set_apart(self, outputs: Outputs, labels: Tensor) -> tuple[Outputs, Tensor, Outputs]:
        """A fifth of the training images standardises the cues, and stays out of the bank."""
        order = torch.from_numpy(np.random.RandomState(0).permutation(len(outputs)))
        rest, chosen = order[len(order) // 5 :], order[: len(order) // 5]
        lost = ""
        if self.logit_cues:
            lost = (
                f" The classifier was trained on them: its {' and '.join(self.logit_cues)} is "
                "lower and varies less there than on new images, so in the score it counts for "
                "more than a layer."
            )
        warn(
            f"GoenM was fitted without held-out images: {len(chosen)} of the {len(outputs)} "
            f"training images standardise the cues and are left out of the bank.{lost} Give "
            "held_out, the outputs of ID images that trained nothing."
        )
        return outputs[rest], labels[rest], outputs[chosen]

    def _add(self, outputs: Outputs, labels: Tensor) -> None:
        if not hasattr(self, "bank_"):
            self.bank_ = Bank(_checked(self.features, self.logit_cues), self.rows)
        self.bank_.update(outputs, labels)
        self.id_cues_, self.ood_cues_ = None, {}

    def class_sums(self) -> tuple[Tensor, Tensor]:
        """Those of the bank."""
        return self.bank_.class_sums(self.features[-1], self.num_classes_)

    @property
    def cue_names(self) -> tuple[str, ...]:
        return (*self.features, *self.logit_cues)

    @property
    def cue_weights(self) -> Mapping[str, float]:
        return dict(zip(self.cue_names, self.weights_.tolist(), strict=True))

    @property
    def description(self) -> str:
        weights = "were fitted with the OOD images" if self.ood_cues_ else "are equal"
        return (
            "The cue of a layer is the distance of an image's features from those of its neighbour "
            f"number {self.bank_.neighbour} among {len(self.bank_):,} training images. The score "
            "is the weighted sum of the cues, each standardised by its mean and standard deviation "
            f"on calibration images. The weights {weights}."
        )

    def _cues(self, outputs: Outputs) -> Tensor:
        """The distance in each layer, then the cues of the logits, ``(N, K)`` float64."""
        # The logits first: the distances read the whole bank, and leave little in the caches.
        uncertainty = [_LOGIT_CUES[name](outputs.logits) for name in self.logit_cues]
        distances = [self.bank_.distance(outputs, layer) for layer in self.features]
        return torch.stack([*distances, *uncertainty], dim=1)

    def _calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs]) -> None:
        ood_cues = {name: self.cues(images) for name, images in ood.items()}
        self.calibrate_cues(self.cues(held_out), ood_cues)

    keeps_calibration = True

    def recalibrate(self, held_out: Outputs | None, ood: Mapping[str, Outputs]) -> None:
        id_cues = self.id_cues_ if held_out is None else self.cues(held_out)
        if id_cues is None:
            raise UsageError("The cues changed: give held_out again.")
        new = {name: self.cues(images) for name, images in ood.items()}
        self.calibrate_cues(id_cues, {**self.ood_cues_, **new})

    def calibrate_cues(self, id_cues: Tensor, ood_cues: Mapping[str, Tensor] | None = None) -> Self:
        """Standardise by ID cues ``(n, K)``; weight by them and the cues of each OOD set.

        Raises:
            FitError: fewer than two ID images, cues that are not finite, or OOD images that no cue
                separates from ID ones; what was calibrated before stays.
        """
        if len(id_cues) < 2:
            raise FitError(f"Two ID images or more standardise the cues, got {len(id_cues)}.")
        if not bool(torch.isfinite(id_cues).all()):
            raise FitError("The ID images' cues hold NaN or infinity. Check images and network.")
        kinds = dict(ood_cues or {})
        mean, spread = id_cues.mean(dim=0), id_cues.std(dim=0)
        # A cue that is the same for every ID image has no scale of its own: it is only centred.
        flat = spread <= 1e-12 * mean.abs()
        spread = torch.where(flat, torch.ones_like(spread), spread)
        weights, bias = torch.full_like(mean, 1 / len(mean)), 0.0
        if kinds:
            unlike = [(cues - mean) / spread for cues in kinds.values()]
            weights, bias = fuse((id_cues - mean) / spread, unlike)
        if not bool((weights > 0).any()):
            raise FitError(
                f"No cue is higher for the OOD images ({', '.join(kinds)}) than for the "
                "held-out ID images: these layers cannot separate them, or the two were "
                "exchanged. Choose other layers, or leave these OOD images out."
            )
        self.id_cues_, self.ood_cues_ = id_cues, kinds
        self.mean_, self.std_, self.weights_ = mean, spread, weights
        self.bias_ = mean.new_tensor([bias])
        return self

    def score_cues(self, cues: Tensor) -> Tensor:
        """The weighted sum of the standardised cues."""
        if self.id_cues_ is None:
            raise NotFittedError(
                "This GoenM is not calibrated. Call calibrate(held_out) after the last update."
            )
        standardised = (cues - self.mean_) / self.std_
        # Not a product with a vector, which onnxruntime refuses for an empty batch.
        return (standardised * self.weights_).sum(dim=1) + self.bias_

    def _score(self, outputs: Outputs) -> Tensor:
        return self.score_cues(self._cues(outputs))

    def probability(self, score: Tensor) -> Tensor | None:
        """P(OOD) where half of the images are OOD; known with OOD images in the fit."""
        return torch.sigmoid(score) if self.ood_cues_ else None

    def nearest(self, outputs: Outputs, count: int) -> Mapping[str, NearestImages]:
        """The ``count`` nearest images of the bank in each layer."""
        return {layer: self.bank_.nearest(outputs, layer, count) for layer in self.features}

    @property
    def num_kept(self) -> tuple[int, int]:
        return len(self.bank_), self.bank_.num_seen

    def state(self) -> dict[str, Tensor]:
        """The bank, and all cues that were calibrated with."""
        state = {f"bank.{k}": v for k, v in self.bank_.state().items()}
        state |= {f"ood_cues.{name}": cues for name, cues in self.ood_cues_.items()}
        return state | super().state()

    def _load(self, tensors: Tensors) -> None:
        """The weights are taken, not computed again: the same to the last bit."""
        bank = tensors.part("bank.")
        ood = {name: f"ood_cues.{name}" for name in tensors.part("ood_cues.")}
        fusion = ["mean", "std", "weights", "bias"]
        known = [*(f"bank.{name}" for name in bank), *ood.values(), "id_cues", *fusion]
        tensors.check_names(known)
        self.bank_ = Bank(self.features).load_state(bank)
        widths = {layer: rows.shape[1] for layer, rows in self.bank_.unit.items()}
        if (self.bank_.num_classes, widths) != (self.num_classes_, self.widths_):
            raise ValueError("its bank was fitted on another network")
        if self.bank_.rows != self.rows:
            raise ValueError(f"its bank should be that of {self.rows} rows, got {self.bank_.rows}")
        self.id_cues_ = self._saved_cues(tensors, "id_cues")
        self.ood_cues_ = {kind: self._saved_cues(tensors, name) for kind, name in ood.items()}
        columns = (len(self.cue_names),)
        self.mean_ = tensors.floats("mean", columns)
        self.std_ = tensors.floats("std", columns, low=torch.finfo(torch.float64).tiny)
        self.weights_ = tensors.floats("weights", columns, low=0.0)
        self.bias_ = tensors.floats("bias", (1,))
        scores = self.score_cues(self.mean_.new_tensor(self._cue_ends()).T)
        if not (bool((self.weights_ > 0).any()) and bool(torch.isfinite(scores).all())):
            raise ValueError("its weights should not all be 0, and give finite scores")

    def _cue_ends(self) -> list[tuple[float, float]]:
        """The least and the largest value of each cue; unit vectors are at most 2 apart."""
        ends = {
            "entropy": (0.0, math.log(self.num_classes_)),
            "energy": (-_LARGEST_ENERGY, _LARGEST_ENERGY),
        }
        return [*((0.0, 2.0) for _ in self.features), *(ends[name] for name in self.logit_cues)]

    def _saved_cues(self, tensors: Tensors, name: str) -> Tensor:
        """The tensor of this name, each column in the range of its cue."""
        cues = tensors.floats(name, ("images", len(self.cue_names)))
        for cue, column, (low, high) in zip(self.cue_names, cues.T, self._cue_ends(), strict=True):
            Tensors({f"{name} of {cue}": column}, tensors.prefix).floats(
                f"{name} of {cue}",
                ("images",),
                low=low - _CUE_TOLERANCE,
                high=high + _CUE_TOLERANCE,
            )
        return cues


def _checked(layers: Sequence[str], logit_cues: Sequence[str]) -> tuple[str, ...]:
    taken = {*layers} & {*logit_cues}
    if not layers or taken or len({*layers}) < len(layers):
        names = " or ".join(map(repr, logit_cues)) or "nothing"
        raise UsageError(
            f"goen-m measures one layer or more, each once, none of them called {names}; got "
            f"{' '.join(layers) or 'none'}."
        )
    return tuple(layers)


def _checked_logit_cues(logit_cues: Sequence[str]) -> tuple[LogitCue, ...]:
    for name in logit_cues:
        check_choice("cue of the logits", name, _LOGIT_CUES)
    if len({*logit_cues}) < len(logit_cues):
        raise UsageError(f"Each cue of the logits is named once, got {', '.join(logit_cues)}.")
    return cast(tuple[LogitCue, ...], tuple(logit_cues))
