"""The paper's scorer: one density, three cues, perhaps a calibrated head."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor, nn

from goen.detectors._tracing import TracedDistance, traced_entropy, traced_unit
from goen.detectors.calibration_head import CalibrationHead, probability_of_ood
from goen.detectors.density import CUES, Density
from goen.detectors.scorer import conformal_columns
from goen.outputs import Outputs


@final
class Goen:
    """The head's logit of the three cues; without a head the log distance alone. High for OOD.

    Paper: GOEN §5.2 and §5.3.
    Departs from the paper: the score is the logit, of which the paper's u is the sigmoid.

    Args:
        density: fitted on the training images.
        head: calibrated with OOD images, or none.
        id_cues: ``(n, 3)``, of ID images that fitted nothing; with them each cue has a p-value.

    Example:
        >>> unit = torch.eye(2).repeat(20, 1) + 0.1 * torch.randn(40, 2)
        >>> outputs = Outputs(torch.zeros(40, 2), {"z": unit})
        >>> scorer = Goen(Density().fit(outputs, torch.arange(40) % 2), None)
        >>> scorer.judge(scorer.cues(outputs))[0].shape
        torch.Size([40])
    """

    kind: ClassVar[str] = "goen"
    cue_names = CUES

    def __init__(
        self, density: Density, head: CalibrationHead | None, id_cues: Tensor | None = None
    ) -> None:
        self.density = density
        self.head = head
        self.id_cues = id_cues

    def __str__(self) -> str:
        return "with a head" if self.head else "without a head"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.density.feature,)

    @property
    def gives_probability(self) -> bool:
        return self.head is not None

    @property
    def explains(self) -> bool:
        return self.id_cues is not None

    def cues(self, outputs: Outputs) -> Tensor:
        """Log distance, similarity and entropy, ``(N, 3)`` float64."""
        return self.density.cues(outputs)

    def judge(self, cues: Tensor) -> tuple[Tensor, Tensor | None]:
        """Score ``(N,)`` float64 and, with a head, the probability of being OOD."""
        return score_cues(cues, self.head)

    def cue_p_values(self, cues: Tensor) -> Tensor | None:
        """Each cue against those of the ID images; similarity counts downwards."""
        if self.id_cues is None:
            return None
        upwards = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
        return conformal_columns(cues * upwards, self.id_cues * upwards)

    def traceable(self) -> nn.Module:
        return _Traced(self)

    def config(self) -> dict[str, Any]:
        """The density's settings and whether there is a head."""
        return {
            "density": {
                "feature": self.density.feature,
                "ridge": self.density.ridge,
                "shrinkage": self.density.shrinkage,
                "condition_number": self.density.whitening_.condition_number,
            },
            "head": None if self.head is None else {"cues": list(CUES)},
        }

    def state(self) -> dict[str, Tensor]:
        """The density's statistics, the head's weights, the ID images' cues."""
        state = {f"density.{k}": v for k, v in self.density.state().items()}
        if self.head is not None:
            state |= {f"head.{k}": v for k, v in self.head.state_dict().items()}
        if self.id_cues is not None:
            state["id_cues"] = self.id_cues
        return state

    @classmethod
    def from_state(cls, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Self:
        """The scorer again; a ``ValueError`` where the two disagree."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        settings = {k: config["density"][k] for k in ("feature", "ridge", "shrinkage")}
        density = Density(**settings).load_state(part("density."))
        if (config["head"] is None) != (not part("head.")):
            raise ValueError("its manifest and its tensors disagree about a head")
        head = None
        if config["head"] is not None:
            head = CalibrationHead(len(CUES))
            head.load_state_dict(part("head."))
            head.eval()
        return cls(density, head, state.get("id_cues"))

    def check(self, num_classes: int, widths: Mapping[str, int]) -> None:
        """Raise a ``ValueError`` unless the density was fitted on such a network."""
        whitening = self.density.whitening_
        expected = (num_classes, widths.get(self.density.feature))
        if (whitening.num_classes, whitening.dim) != expected:
            raise ValueError("its density was fitted on another network")


def score_cues(cues: Tensor, head: CalibrationHead | None) -> tuple[Tensor, Tensor | None]:
    """Score ``(N,)`` float64 and, with a head, the probability of being OOD."""
    if head is None:
        return cues[:, 0], None
    with torch.inference_mode():
        logit = head(cues.float()).double()
    return logit, probability_of_ood(logit)


class _Traced(nn.Module):
    """See ``Scorer.traceable``."""

    means: Tensor

    def __init__(self, scorer: Goen) -> None:
        super().__init__()
        density = scorer.density
        self.feature = density.feature
        self.distance = TracedDistance(density.feature, density.whitening_)
        means = density.statistics_.means_ if density.statistics_ is not None else None
        assert means is not None  # whitening_ above would have raised
        self.register_buffer("means", means[~torch.isnan(means).all(dim=1)])
        self.head = scorer.head

    def forward(self, outputs: Outputs) -> Tensor:
        distance = self.distance(outputs)
        if self.head is None:
            score: Tensor = distance
            return score
        unit = traced_unit(outputs.features[self.feature])
        similarity = (unit @ self.means.T).amax(dim=1)
        cues = torch.stack([distance, similarity, traced_entropy(outputs.logits)], dim=1)
        logit: Tensor = self.head(cues.float()).double()
        return logit
