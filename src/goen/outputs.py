"""``Outputs``, the waist of the hourglass: what a network says about images, and nothing else."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outputs:
    """Logits ``(N, C)`` and pooled features ``{name: (N, D)}`` of the same N images."""

    logits: Tensor
    features: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: slice | Tensor) -> "Outputs":
        """The outputs of these images."""
        return Outputs(self.logits[rows], {k: v[rows] for k, v in self.features.items()})

    @staticmethod
    def concatenate(parts: Iterable["Outputs"]) -> "Outputs":
        """All the parts, one after the other."""
        gathered = list(parts)
        names = gathered[0].features
        return Outputs(
            torch.cat([part.logits for part in gathered]),
            {name: torch.cat([part.features[name] for part in gathered]) for name in names},
        )
