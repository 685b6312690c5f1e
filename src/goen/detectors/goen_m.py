"""goen-m: every scale speaks for itself, and the score can only rise with what each says."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor, nn

from goen.detectors._bank import ROWS, Bank
from goen.detectors._tracing import TracedNeighbour, traced_entropy
from goen.detectors.scorer import conformal_columns
from goen.errors import FitError, NotFittedError, UsageError
from goen.functional.cues import entropy
from goen.functional.fusion import fuse
from goen.outputs import Outputs

ENTROPY = "entropy"


@final
class Monotone:
    r"""The mean of standardised cues, or their sum with fitted weights; high for OOD.

    The cues are the distance from the image's unit vector to its near neighbours among training
    images, one per layer, and the entropy of the softmax. Each is standardised by its mean and
    standard deviation on ID images that fitted nothing. Without OOD images the score is their mean:
    how many standard deviations further out than usual. With them the weights are a logistic
    regression's, none below zero, see ``goen.functional.fusion.fuse``: the score is then the logit
    of the probability of being OOD where half of the images are, every kind of OOD counting the
    same.

    An image that is farther out in every cue never scores lower. A free head can learn the OOD
    images it was shown so well that it calls stranger ones ordinary; this one cannot.

    Paper: none, it is ours; docs/methods/goen-m.md says how it was chosen. The distance is that of
    Sun et al. 2022, "Out-of-Distribution Detection with Deep Nearest Neighbors", within a sample of
    the training images; see ``Bank``.

    Args:
        layers: the features to measure.
        rows: how many training images to keep.

    Example:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator ...>
        >>> outputs = Outputs(torch.zeros(40, 2), {"deep": torch.randn(40, 3) + 5})
        >>> scorer = Monotone(["deep"]).update(outputs, torch.arange(40) % 2)
        >>> scorer = scorer.calibrate(scorer.cues(outputs))
        >>> scorer.cue_names, scorer.weights_.tolist()
        (('deep', 'entropy'), [0.5, 0.5])
    """

    kind: ClassVar[str] = "goen-m"

    def __init__(self, layers: Sequence[str], rows: int = ROWS) -> None:
        if not layers or ENTROPY in layers:
            raise UsageError(
                f"goen-m measures one layer or more, none of them called {ENTROPY!r}; got "
                f"{list(layers)}."
            )
        self.bank_ = Bank(layers, rows)
        self.id_cues_: Tensor | None = None
        self.ood_cues_: dict[str, Tensor] = {}

    def __str__(self) -> str:
        kinds = ", ".join(self.ood_cues_)
        return f"goen-m on {', '.join(self.bank_.layers)}, OOD: {kinds or 'none'}"

    @property
    def cue_names(self) -> tuple[str, ...]:
        return (*self.bank_.layers, ENTROPY)

    @property
    def needs(self) -> tuple[str, ...]:
        return self.bank_.layers

    @property
    def gives_probability(self) -> bool:
        return bool(self.ood_cues_)

    @property
    def explains(self) -> bool:
        return True

    def update(self, outputs: Outputs, labels: Tensor) -> Self:
        """Add training images, in any chunks; what was calibrated before is forgotten."""
        self.bank_.update(outputs, labels)
        self.id_cues_, self.ood_cues_ = None, {}
        return self

    def cues(self, outputs: Outputs) -> Tensor:
        """The distance in each layer, then the entropy, ``(N, K)`` float64."""
        distances = [self.bank_.distance(outputs, layer) for layer in self.bank_.layers]
        return torch.stack([*distances, entropy(outputs.logits)], dim=1)

    def calibrate(self, id_cues: Tensor, ood_cues: Mapping[str, Tensor] | None = None) -> Self:
        """Standardise by ID cues ``(n, K)``; weigh by them and the cues of each kind of OOD.

        Raises:
            FitError: fewer than two ID images, cues that are not finite, or OOD images that no cue
                tells from ID ones; what was calibrated before stays.
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
            strange = [(cues - mean) / spread for cues in kinds.values()]
            weights, bias = fuse((id_cues - mean) / spread, strange)
        if not bool((weights > 0).any()):
            raise FitError(
                f"No cue is higher for the OOD images ({', '.join(kinds)}) than for the "
                "held-out ID images: these layers cannot tell them apart, or the two were "
                "exchanged. Choose other layers, or leave these OOD images out."
            )
        self.id_cues_, self.ood_cues_ = id_cues, kinds
        self.mean_, self.std_, self.weights_, self.bias_ = mean, spread, weights, bias
        return self

    def _standardised(self, cues: Tensor) -> Tensor:
        return (cues - self.mean_) / self.std_

    def judge(self, cues: Tensor) -> tuple[Tensor, Tensor | None]:
        """Score ``(N,)`` and, with OOD images, P(OOD) at a prevalence of one half."""
        self._calibrated()
        score = self._standardised(cues) @ self.weights_ + self.bias_
        return score, torch.sigmoid(score) if self.ood_cues_ else None

    def cue_p_values(self, cues: Tensor) -> Tensor:
        """Each cue against those of the ID images that standardise it."""
        return conformal_columns(cues, self._calibrated())

    def _calibrated(self) -> Tensor:
        if self.id_cues_ is None:
            raise NotFittedError(
                "This Monotone is not calibrated. Call calibrate(id_cues) after the last update."
            )
        return self.id_cues_

    def traceable(self) -> nn.Module:
        return _Traced(self)

    def config(self) -> dict[str, Any]:
        """The layers, the kinds of OOD and, for people to read, the weights."""
        self._calibrated()
        return {
            "layers": list(self.bank_.layers),
            "ood": list(self.ood_cues_),
            "weights": dict(zip(self.cue_names, self.weights_.tolist(), strict=True)),
            "rows": len(self.bank_),
            "neighbour": self.bank_.neighbour,
        }

    def state(self) -> dict[str, Tensor]:
        """The bank, and all cues that were calibrated with."""
        state = {f"bank.{k}": v for k, v in self.bank_.state().items()}
        state["id_cues"] = self._calibrated()
        bias = torch.tensor([self.bias_], dtype=torch.float64)
        state["fusion"] = torch.cat([self.mean_, self.std_, self.weights_, bias])
        return state | {f"ood_cues.{i}": v for i, v in enumerate(self.ood_cues_.values())}

    @classmethod
    def from_state(cls, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Self:
        """The scorer again, to the last bit: the weights are taken, not computed anew."""
        scorer = cls(config["layers"])
        if "bank.counts" not in state:
            raise ValueError("an earlier goen-m, which measured otherwise, made it; fit it again")
        scorer.bank_.load_state(
            {k.removeprefix("bank."): v for k, v in state.items() if k.startswith("bank.")}
        )
        scorer.id_cues_ = state["id_cues"]
        scorer.ood_cues_ = {k: state[f"ood_cues.{i}"] for i, k in enumerate(config["ood"])}
        columns = len(scorer.cue_names)
        fusion = state["fusion"]
        scorer.mean_, scorer.std_, scorer.weights_ = fusion[:-1].view(3, columns)
        scorer.bias_ = float(fusion[-1])
        return scorer

    def check(self, num_classes: int, widths: Mapping[str, int]) -> None:
        """Raise a ``ValueError`` unless it was fitted on such a network."""
        for layer in self.bank_.layers:
            found = (self.bank_.num_classes, self.bank_.width(layer))
            if found != (num_classes, widths.get(layer)):
                raise ValueError(f"layer {layer!r} was fitted on another network")


class _Traced(nn.Module):
    """See ``Scorer.traceable``."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scorer: Monotone) -> None:
        super().__init__()
        bank = scorer.bank_
        self.distances = nn.ModuleList(
            TracedNeighbour(layer, bank.unit(layer), bank.neighbour) for layer in bank.layers
        )
        scale = scorer.weights_ / scorer.std_
        self.register_buffer("scale", scale)
        self.register_buffer("shift", scorer.bias_ - (scale * scorer.mean_).sum())

    def forward(self, outputs: Outputs) -> Tensor:
        cues = [distance(outputs) for distance in self.distances]
        cues.append(traced_entropy(outputs.logits))
        return torch.stack(cues, dim=1) @ self.scale + self.shift
