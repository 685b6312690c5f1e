"""goen-m: a cue per layer and some of the classifier, fused so that the score rises with each.

A further cue of the logits is an entry in ``_LOGIT_CUES``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from goen.checks import check_number
from goen.detectors._bank import ROWS, Bank, NearestImages
from goen.detectors._base import CueDetector, column_p_values
from goen.detectors._tracing import TracedNeighbour, traced_energy, traced_entropy
from goen.errors import FitError, NotFittedError, UsageError, unknown
from goen.functional._rows import check_features
from goen.functional.cues import entropy
from goen.functional.fusion import fuse
from goen.functional.logits import check_same_classes, energy_score
from goen.outputs import Outputs
from goen.runs.manifest import JsonObject, Manifest
from goen.runs.tensors import Tensors

LogitCue = Literal["entropy", "energy"]
# By how much saved cues may leave their range, by rounding.
_CUE_SLACK = 1e-6
# Far above every logit that a trained network gives, far below what overflows.
_LARGEST_ENERGY = 1e30


@dataclass(frozen=True)
class _OfLogits:
    """A cue of the logits: its formula, the same for a traced program, its range by classes."""

    measure: Callable[[Tensor], Tensor]
    traced: Callable[[Tensor], Tensor]
    ends: Callable[[int], tuple[float, float]]


_LOGIT_CUES: Mapping[str, _OfLogits] = {
    "entropy": _OfLogits(entropy, traced_entropy, lambda classes: (0.0, math.log(classes))),
    "energy": _OfLogits(
        energy_score, traced_energy, lambda classes: (-_LARGEST_ENERGY, _LARGEST_ENERGY)
    ),
}


@final
class GoenM(CueDetector):
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
        layers: the features to measure; all of the outputs it is fitted on if not given.
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

    kind: ClassVar[str] = "goen-m"

    def __init__(
        self,
        layers: Sequence[str] | None = None,
        *,
        rows: int = ROWS,
        logit_cues: Sequence[LogitCue] = ("entropy",),
    ) -> None:
        self.logit_cues = _checked_logit_cues(logit_cues)
        self.layers = None if layers is None else _checked(layers, self.logit_cues)
        self.rows = rows
        check_number("rows", rows, whole=True, at_least=1)
        self.bank_: Bank | None = None
        self.id_cues_: Tensor | None = None
        self.ood_cues_: dict[str, Tensor] = {}

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
            held_out: of ID images that trained nothing; they standardise the cues. Without them a
                fifth of the training images does, and stays out of the bank.
            ood: of each OOD set that weights the cues.
        """
        self._check_fit(outputs, labels)
        if held_out is None:
            order = torch.from_numpy(np.random.RandomState(0).permutation(len(outputs)))
            rest, chosen = order[len(order) // 5 :], order[: len(order) // 5]
            outputs, labels, held_out = outputs[rest], labels[rest], outputs[chosen]
        bank = self._new(outputs).update(outputs, labels)
        ood_cues = {name: self._cues(bank, images) for name, images in (ood or {}).items()}
        self.calibrate(self._cues(bank, held_out), ood_cues)
        self.bank_ = bank
        return self

    def _new(self, outputs: Outputs) -> Bank:
        layers = self.layers or _checked(tuple(outputs.features), self.logit_cues)
        return Bank(layers, self.rows)

    @property
    def bank(self) -> Bank:
        """The training images that are kept.

        Raises:
            NotFittedError: nothing was fitted yet.
        """
        if self.bank_ is None:
            raise NotFittedError(
                "This GoenM is not fitted. Call fit(outputs, labels), or take "
                "GoenM.from_state(...) of a saved one."
            )
        return self.bank_

    @property
    def cue_names(self) -> tuple[str, ...]:
        return (*self.bank.layers, *self.logit_cues)

    @property
    def cue_directions(self) -> tuple[int, ...]:
        return (1,) * len(self.cue_names)

    @property
    def features(self) -> tuple[str, ...]:
        return self.bank.layers

    @property
    def has_probability(self) -> bool:
        return bool(self.ood_cues_)

    @property
    def has_cue_p_values(self) -> bool:
        return True

    def update(self, outputs: Outputs, labels: Tensor) -> Self:
        """Add training images, in any chunks; what was calibrated before is forgotten."""
        bank = self._new(outputs) if self.bank_ is None else self.bank_
        self.bank_ = bank.update(outputs, labels)
        self.id_cues_, self.ood_cues_ = None, {}
        return self

    def add_bank(self, bank: Bank) -> Self:
        """Add the training images of a bank; what was calibrated before is forgotten.

        Raises:
            UsageError: a bank of other layers or of another network.
        """
        if self.layers is not None and bank.layers != self.layers:
            raise UsageError(
                f"This goen-m measures {', '.join(self.layers)}; the training images were read "
                f"with {', '.join(bank.layers)}."
            )
        self.bank_ = bank if self.bank_ is None else self.bank_.merged(bank)
        self.id_cues_, self.ood_cues_ = None, {}
        return self

    def cues(self, outputs: Outputs) -> Tensor:
        """The distance in each layer, then the cues of the logits, ``(N, K)`` float64."""
        return self._cues(self.bank, outputs)

    def _cues(self, bank: Bank, outputs: Outputs) -> Tensor:
        check_features(outputs.logits)
        outputs.check_counts()
        check_same_classes(outputs.logits, bank.num_classes, "GoenM")
        # The logits first: the distances read the whole bank, and leave little in the caches.
        uncertainty = [_LOGIT_CUES[name].measure(outputs.logits) for name in self.logit_cues]
        distances = [bank.distance(outputs, layer) for layer in bank.layers]
        return torch.stack([*distances, *uncertainty], dim=1)

    def calibrate(self, id_cues: Tensor, ood_cues: Mapping[str, Tensor] | None = None) -> Self:
        """Standardise by ID cues ``(n, K)``; weigh by them and the cues of each kind of OOD.

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
        self.mean_, self.std_, self.weights_, self.bias_ = mean, spread, weights, bias
        return self

    def _standardised(self, cues: Tensor) -> Tensor:
        return (cues - self.mean_) / self.std_

    def score_cues(self, cues: Tensor) -> Tensor:
        """The weighted sum of the standardised cues."""
        self._calibrated()
        return self._standardised(cues) @ self.weights_ + self.bias_

    def probability(self, score: Tensor) -> Tensor | None:
        """P(OOD) where half of the images are OOD; known with OOD images in the fit."""
        return torch.sigmoid(score) if self.ood_cues_ else None

    def cue_p_values(self, cues: Tensor) -> Tensor:
        """Each cue against those of the ID images that standardise it."""
        self._calibrated()
        return column_p_values(cues, self._id_columns)

    def nearest(self, outputs: Outputs, count: int) -> Mapping[str, NearestImages]:
        """The ``count`` nearest images of the bank in each layer."""
        return {layer: self.bank.nearest(outputs, layer, count) for layer in self.bank.layers}

    @property
    def num_kept(self) -> tuple[int, int]:
        return len(self.bank), self.bank.num_seen

    def _calibrated(self) -> Tensor:
        if self.id_cues_ is None:
            raise NotFittedError(
                "This GoenM is not calibrated. Call calibrate(id_cues) after the last update."
            )
        return self.id_cues_

    def traceable(self) -> nn.Module:
        return _Traced(self)

    def config(self) -> JsonObject:
        """The layers, the kinds of OOD and, for people to read, the weights."""
        self._calibrated()
        config: JsonObject = {
            "layers": list(self.bank.layers),
            "ood": list(self.ood_cues_),
            "weights": dict(zip(self.cue_names, self.weights_.tolist(), strict=True)),
            "rows": len(self.bank),
            "neighbour": self.bank.neighbour,
        }
        # Left out at its default, as in files from before there was a choice.
        if self.logit_cues == ("entropy",):
            return config
        return {**config, "logit_cues": list(self.logit_cues)}

    def state(self) -> dict[str, Tensor]:
        """The bank, and all cues that were calibrated with."""
        state = {f"bank.{k}": v for k, v in self.bank.state().items()}
        state["id_cues"] = self._calibrated()
        bias = self.mean_.new_tensor([self.bias_])
        state["fusion"] = torch.cat([self.mean_, self.std_, self.weights_, bias])
        return state | {f"ood_cues.{i}": v for i, v in enumerate(self.ood_cues_.values())}

    @classmethod
    def from_state(cls, config: JsonObject, state: Mapping[str, Tensor]) -> Self:
        """The detector again, to the last bit: the weights are taken, not computed anew."""
        settings, tensors = Manifest(config, "scorer."), Tensors.of(state)
        settings.check_names(
            ["kind", "layers", "ood", "weights", "rows", "neighbour", "logit_cues"]
        )
        of_logits = settings.texts("logit_cues") if "logit_cues" in settings else ("entropy",)
        detector = cls(settings.texts("layers"), logit_cues=cast(Sequence[LogitCue], of_logits))
        if "bank.counts" not in tensors:
            raise ValueError("an earlier goen-m, which measured otherwise, made it; fit it again")
        detector.bank_ = Bank(settings.texts("layers")).load_state(tensors.part("bank."))
        detector.rows = detector.bank_.rows
        names = settings.texts("ood")
        if len({*names}) < len(names):
            raise ValueError(f"its kinds of OOD should have different names, got {names}")
        of_ood = [f"ood_cues.{i}" for i in range(len(names))]
        known = [name for name in tensors if name.startswith("bank.")]
        tensors.check_names([*known, "id_cues", "fusion", *of_ood])
        detector.id_cues_ = detector._saved_cues(tensors, "id_cues")
        cues = [detector._saved_cues(tensors, name) for name in of_ood]
        detector.ood_cues_ = dict(zip(names, cues, strict=True))
        detector._load_fusion(tensors)
        detector._check_config(settings)
        return detector

    def _cue_ends(self) -> list[tuple[float, float]]:
        """The least and the largest value of each cue; unit vectors are at most 2 apart."""
        classes = self.bank.num_classes
        of_logits = [_LOGIT_CUES[name].ends(classes) for name in self.logit_cues]
        return [*((0.0, 2.0) for _ in self.bank.layers), *of_logits]

    def _saved_cues(self, tensors: Tensors, name: str) -> Tensor:
        """The tensor of this name, each column in the range of its cue."""
        cues = tensors.floats(name, ("images", len(self.cue_names)))
        for cue, column, (low, high) in zip(self.cue_names, cues.T, self._cue_ends(), strict=True):
            Tensors({f"{name} of {cue}": column}, tensors.prefix).floats(
                f"{name} of {cue}", ("images",), low=low - _CUE_SLACK, high=high + _CUE_SLACK
            )
        return cues

    def _load_fusion(self, tensors: Tensors) -> None:
        columns = len(self.cue_names)
        fusion = tensors.floats("fusion", (3 * columns + 1,))
        self.mean_, self.std_, self.weights_ = fusion[:-1].view(3, columns)
        self.bias_ = float(fusion[-1])
        ends = fusion.new_tensor(self._cue_ends()).T
        rises = bool((self.std_ > 0).all() and (self.weights_ >= 0).all())
        scores = self._standardised(ends) @ self.weights_ + self.bias_
        if not (rises and bool((self.weights_ > 0).any()) and bool(torch.isfinite(scores).all())):
            raise ValueError(
                f"its tensor {tensors.prefix}fusion should hold means, standard deviations above "
                "0, weights of at least 0, one of them above 0, and a bias, that give finite "
                f"scores, got {fusion.tolist()[:10]}"
            )

    def _check_config(self, settings: Manifest) -> None:
        """What is written for people agrees with the tensors."""
        expected = self.config()
        for name in ("weights", "rows", "neighbour"):
            if name in settings and settings.content[name] != expected[name]:
                raise ValueError(
                    f"its {settings.prefix}{name} should be {expected[name]}, as in its tensors, "
                    f"got {str(settings.content[name])[:80]}"
                )

    def check_network(self, num_classes: int, widths: Mapping[str, int]) -> None:
        for layer in self.bank.layers:
            found = (self.bank.num_classes, self.bank.width(layer))
            if found != (num_classes, widths.get(layer)):
                raise ValueError(f"layer {layer!r} was fitted on another network")


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
        if name not in _LOGIT_CUES:
            raise unknown("cue of the logits", name, _LOGIT_CUES)
    if len({*logit_cues}) < len(logit_cues):
        raise UsageError(f"Each cue of the logits is named once, got {', '.join(logit_cues)}.")
    return cast(tuple[LogitCue, ...], tuple(logit_cues))


class _Traced(nn.Module):
    """See ``CueDetector.traceable``."""

    scale: Tensor
    shift: Tensor

    def __init__(self, detector: GoenM) -> None:
        super().__init__()
        bank = detector.bank
        self.distances = nn.ModuleList(
            TracedNeighbour(layer, bank.unit(layer), bank.neighbour) for layer in bank.layers
        )
        self.logit_cues = detector.logit_cues
        scale = detector.weights_ / detector.std_
        self.register_buffer("scale", scale)
        self.register_buffer("shift", detector.bias_ - (scale * detector.mean_).sum())

    def forward(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        uncertainty = [_LOGIT_CUES[name].traced(outputs.logits) for name in self.logit_cues]
        distances = [distance(outputs) for distance in self.distances]
        cues = torch.stack([*distances, *uncertainty], dim=1)
        # Not a product with a vector, which onnxruntime refuses for an empty batch.
        return cues, (cues * self.scale).sum(dim=1) + self.shift
