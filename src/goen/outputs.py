"""``Outputs``: the logits and features of a network for a batch of images.

All that lies behind a network (detectors, metrics, studies) reads ``Outputs``, never a model."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from goen.errors import UsageError, unknown
from goen.notebook import MOST_ROWS, cut, html_table


@dataclass(frozen=True)
class Outputs:
    """Logits ``(N, C)`` and pooled features ``{name: (N, D)}`` of the same N images.

    ``uncertainty`` ``(N,)`` is present when the network provides its own uncertainty estimate (the
    mutual information of an MC-dropout head, an evidential head's vacuity); higher means more. The
    softmax of ``logits`` is always the network's probability of each class.
    """

    logits: Tensor
    features: Mapping[str, Tensor]
    uncertainty: Tensor | None = None

    def __len__(self) -> int:
        return len(self.logits)

    def _repr_html_(self) -> str:
        parts = {"logits": self.logits, **self.features}
        if self.uncertainty is not None:
            parts["uncertainty"] = self.uncertainty
        rows = [
            (name, str(tuple(part.shape)), str(part.dtype).removeprefix("torch."), *_range(part))
            for name, part in [*parts.items()][:MOST_ROWS]
        ]
        columns = ("", "shape", "type", "lowest", "highest")
        note = cut(len(rows), len(parts), "outputs")
        title = f"Outputs of {len(self):,} inputs"
        return html_table(title, columns, rows, note=note, right=columns[3:])

    def __getitem__(self, rows: slice | Tensor | list[int]) -> "Outputs":
        """The outputs of these images.

        Raises:
            UsageError: one number, which would leave a row without its axis.
        """
        if not isinstance(rows, slice | list) and getattr(rows, "ndim", 0) != 1:
            raise UsageError(
                f"Outputs are indexed by a slice or by a list or tensor of rows, got {rows!r}. The "
                "first image is outputs[[0]], the last outputs[[-1]]."
            )
        features = {name: values[rows] for name, values in self.features.items()}
        uncertainty = None if self.uncertainty is None else self.uncertainty[rows]
        return Outputs(self.logits[rows], features, uncertainty)

    @property
    def last_feature(self) -> str:
        """The name of the last feature: the one nearest to the logits.

        Raises:
            UsageError: there are logits alone.
        """
        if not self.features:
            raise UsageError(
                "A feature is to be measured, and these outputs have logits alone. Extract them "
                "with features."
            )
        return list(self.features)[-1]

    def check_counts(self) -> None:
        """Raise a ``UsageError`` unless logits and features have the same number of rows.

        Detectors call this. Not checked when they are made: that happens in traced networks too.
        """
        for name, values in self.features.items():
            if len(values) != len(self.logits):
                raise UsageError(
                    f"Logits and features are of the same images: the logits have "
                    f"{len(self.logits)} rows, feature {name!r} has {len(values)}. Extract both in "
                    "one pass, or take the same rows of both."
                )

    def feature(self, name: str) -> Tensor:
        """The feature of this name, ``(N, D)``.

        Raises:
            UsageError: there is none.
        """
        if not isinstance(name, str):
            raise UsageError(f"One feature is named by a string, got {name!r}.")
        if name not in self.features:
            raise unknown("feature", name, self.features)
        return self.features[name]

    def keep(self, names: Collection[str]) -> "Outputs":
        """These outputs with no more than the named features."""
        kept = {name: self.features[name] for name in names}
        return Outputs(self.logits, kept, self.uncertainty)

    def cpu(self) -> "Outputs":
        """The same on the CPU."""
        features = {name: values.cpu() for name, values in self.features.items()}
        uncertainty = None if self.uncertainty is None else self.uncertainty.cpu()
        return Outputs(self.logits.cpu(), features, uncertainty)

    @staticmethod
    def concatenate(parts: Iterable["Outputs"]) -> "Outputs":
        """All the parts, one after the other; at least one."""
        gathered = list(parts)
        if not gathered:
            raise UsageError("Cannot concatenate: there are no batches.")
        names = gathered[0].features
        uncertain = [part.uncertainty for part in gathered if part.uncertainty is not None]
        return Outputs(
            torch.cat([part.logits for part in gathered]),
            {name: torch.cat([part.features[name] for part in gathered]) for name in names},
            torch.cat(uncertain) if len(uncertain) == len(gathered) else None,
        )


def _range(values: Tensor) -> tuple[str, str]:
    """The lowest and the highest value."""
    if not values.numel():
        return "", ""
    low, high = values.detach().aminmax()
    return f"{low.item():.4g}", f"{high.item():.4g}"
