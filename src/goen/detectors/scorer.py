"""What a gate asks of the method behind it: cues, one score, and a state of plain tensors."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from goen.functional.conformal import p_values
from goen.outputs import Outputs


class Scorer(Protocol):
    """Outputs to cues, cues to a score; higher means more OOD.

    A fitted scorer is not changed by scoring. ``config`` and ``state`` together are all of it, so
    that ``from_state(config, state)`` is the same scorer again.
    """

    kind: ClassVar[str]
    """The method's name in manifests."""

    @property
    def cue_names(self) -> tuple[str, ...]:
        """K names, in the order of the columns of ``cues``."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The features it reads of the outputs."""

    @property
    def gives_probability(self) -> bool:
        """Whether OOD images took part in the fit, so that ``judge`` has a probability."""

    @property
    def explains(self) -> bool:
        """Whether ``cue_p_values`` has an answer."""

    def cues(self, outputs: Outputs) -> Tensor:
        """What it looks at, ``(N, K)`` float64."""

    def judge(self, cues: Tensor) -> tuple[Tensor, Tensor | None]:
        """Score ``(N,)`` float64 of cues ``(N, K)``, and the probability of being OOD if known."""

    def cue_p_values(self, cues: Tensor) -> Tensor | None:
        """Conformal p-value of each cue alone, ``(N, K)``: small where that cue sees OOD."""

    def traceable(self) -> nn.Module:
        """Outputs to scores ``(N,)`` in plain tensor operations, for an exported program."""

    def config(self) -> dict[str, Any]:
        """Its settings, as JSON can hold them."""

    def state(self) -> dict[str, Tensor]:
        """What was learnt."""

    @classmethod
    def from_state(cls, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Self:
        """The scorer that ``config`` and ``state`` describe."""

    def check(self, num_classes: int, widths: Mapping[str, int]) -> None:
        """Raise a ``ValueError`` unless it was fitted on so many classes and such features."""


def conformal_columns(cues: Tensor, reference: Tensor) -> Tensor:
    """The p-value of each column of ``cues`` against the same column of ``reference``.

    Example:
        >>> conformal_columns(torch.tensor([[2.5, 0.0]]), torch.tensor([[1.0, 1.0], [3.0, 2.0]]))
        tensor([[0.6667, 1.0000]], dtype=torch.float64)
    """
    columns = [p_values(c, r) for c, r in zip(cues.T, reference.T, strict=True)]
    return torch.stack([torch.from_numpy(column) for column in columns], dim=1)
