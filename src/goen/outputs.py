"""``Outputs``: the logits and features of a network for a batch of images.

All that lies behind a network (detectors, metrics, studies) reads ``Outputs``, never a model."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from goen.errors import UsageError, unknown
from goen.notebook import MOST_ROWS, cut, html_table

# How far a classifier may be from the logits: of what the features add to the bias (pooled in
# another order, or in TF32), and of the logits (rounding). In float32, and in 16 bits.
_FULL, _HALF = (1e-3, 1e-6), (2e-2, 1e-2)
_HALVES = (torch.bfloat16, torch.float16)
# Rows whose logits are computed at once.
_ROWS = 65_536
# Rows, evenly spaced, that are enough to see whether features and logits belong together.
_CHECKED = 1024


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """The last layer of a network: its logits are ``features[feature] @ weight.T + bias``.

    Attributes:
        weight: ``(C, D)``, float32 or float64.
        bias: ``(C,)``.
        feature: the feature that it reads.
    """

    weight: Tensor
    bias: Tensor
    feature: str

    @classmethod
    def of(
        cls, layer: nn.Linear | nn.Conv2d, feature: str, scale: float = 1.0
    ) -> "LinearClassifier | None":
        """The weights of a linear layer, or of a convolution of one pixel, that classifies.

        They are views of the layer's own, unless these have 16 bits. ``None`` in a program that
        torch.export or torch.compile traces, which returns tensors alone.

        Args:
            layer: gives the logits.
            feature: the name of the feature that it reads.
            scale: what that feature is multiplied by before.

        Example:
            >>> LinearClassifier.of(nn.Linear(8, 3), "z").weight.shape
            torch.Size([3, 8])
        """
        if torch.compiler.is_compiling():
            return None
        weight = layer.weight.detach().flatten(1)
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        return cls(weight if scale == 1 else weight * scale, bias.to(weight.dtype), feature)

    def logits(self, features: Tensor) -> Tensor:
        """The logits ``(N, C)`` of features ``(N, D)``."""
        return features.to(self.weight.dtype) @ self.weight.T + self.bias

    def difference(self, outputs: "Outputs") -> tuple[float, float]:
        """How far its logits are from those of the outputs at most, and how far they may be.

        The tolerance is a thousandth of the most that the features add to the bias; where the
        model computes in 16 bits, two hundredths, and a hundredth of the largest logit. Rows that
        are not finite are left out.
        """
        features, logits = outputs.feature(self.feature).detach(), outputs.logits.detach()
        half = _is_half(self.weight) or _is_half(logits)
        most = added = largest = 0.0
        for start in range(0, len(logits), _ROWS):
            rows, given = features[start : start + _ROWS], logits[start : start + _ROWS]
            finite = given.isfinite().all(1) & rows.isfinite().all(1)
            if finite.any():
                given = given[finite].to(self.weight.dtype)
                most = max(most, float((self.logits(rows[finite]) - given).abs().max()))
                added = max(added, float((given - self.bias).abs().max()))
                largest = max(largest, float(given.abs().max()))
        of_added, of_largest = _HALF if half else _FULL
        return most, of_added * added + of_largest * largest

    def cpu(self) -> "LinearClassifier":
        """The same on the CPU."""
        return LinearClassifier(self.weight.cpu(), self.bias.cpu(), self.feature)


@dataclass(frozen=True, eq=False)
class Outputs:
    """Logits ``(N, C)`` and pooled features ``{name: (N, D)}`` of the same N images.

    ``uncertainty`` ``(N,)`` is present when the network provides its own uncertainty estimate (the
    mutual information of an MC-dropout head, an evidential head's vacuity); higher means more. The
    softmax of ``logits`` is always the network's probability of each class. ``classifier`` is
    present where the logits are a linear function of one of these features: methods that use its
    weights (ViM, ReAct, fDBD) take them from here. ``labels`` ``(N,)`` are the classes of the
    images, where they are known: ``detector.fit(outputs, outputs.labels)``. ``properties``
    ``(N, P)`` are those of the images themselves, where they were measured: see
    ``goen.functional.image_properties``; no detector reads them.

    Example:
        >>> outputs = Outputs(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), {"z": torch.eye(2)})
        >>> len(outputs), outputs[:1].features
        (2, {'z': tensor([[1., 0.]])})
    """

    logits: Tensor
    features: Mapping[str, Tensor]
    uncertainty: Tensor | None = None
    classifier: LinearClassifier | None = None
    labels: Tensor | None = None
    properties: Tensor | None = None

    def __len__(self) -> int:
        return len(self.logits)

    def __repr__(self) -> str:
        parts = {"logits": self.logits, **self.features}
        shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in parts.items())
        beside = {
            "labels": self.labels,
            "uncertainty": self.uncertainty,
            "classifier": self.classifier,
        }
        more = [name for name, part in beside.items() if part is not None]
        return f"Outputs({'; '.join([shapes, ', '.join(more)] if more else [shapes])})"

    def _repr_html_(self) -> str:
        parts = {"logits": self.logits, **self.features}
        beside = {"uncertainty": self.uncertainty, "labels": self.labels}
        parts |= {name: part for name, part in beside.items() if part is not None}
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
        return self._map(lambda part: part[rows])

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
        """These outputs with no more than the named features.

        The classifier is kept with the feature that it reads.

        Raises:
            UsageError: there is no such feature.
        """
        kept = {name: self.feature(name) for name in names}
        reads = None if self.classifier is None else self.classifier.feature
        return replace(self, features=kept, classifier=self.classifier if reads in kept else None)

    def cpu(self) -> "Outputs":
        """The same on the CPU."""
        classifier = None if self.classifier is None else self.classifier.cpu()
        return replace(self._map(lambda part: part.cpu()), classifier=classifier)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Outputs":
        """The function applied to what has a row for each image."""
        return Outputs(
            function(self.logits),
            {name: function(values) for name, values in self.features.items()},
            None if self.uncertainty is None else function(self.uncertainty),
            self.classifier,
            None if self.labels is None else function(self.labels),
            None if self.properties is None else function(self.properties),
        )

    @staticmethod
    def concatenate(parts: Iterable["Outputs"]) -> "Outputs":
        """All the parts, one after the other; at least one."""
        gathered = list(parts)
        if not gathered:
            raise UsageError("Cannot concatenate: there are no batches.")
        names = gathered[0].features
        return Outputs(
            torch.cat([part.logits for part in gathered]),
            {name: torch.cat([part.features[name] for part in gathered]) for name in names},
            _all([part.uncertainty for part in gathered]),
            gathered[0].classifier,
            _all([part.labels for part in gathered]),
            _all([part.properties for part in gathered]),
        )


def check_classifier(outputs: Outputs) -> LinearClassifier:
    """The classifier of the outputs, which reproduces their logits.

    Of many rows some 1,024 are looked at, evenly spaced: other weights, or the features of other
    images, show in nearly all of them.

    Raises:
        UsageError: there is none, or its logits are others; see ``LinearClassifier.difference``.

    Example:
        >>> z = torch.eye(2)
        >>> identity = LinearClassifier(torch.eye(2), torch.zeros(2), "z")
        >>> check_classifier(Outputs(z, {"z": z}, classifier=identity)).feature
        'z'
    """
    classifier = outputs.classifier
    if classifier is None:
        raise UsageError(
            "These outputs have no linear classifier: the logits are not a linear function of one "
            f"of the features ({', '.join(outputs.features) or 'there are none'}). Extract what "
            "the last linear layer reads: LAYER:input, such as fc:input, or layers='auto', which "
            "finds it."
        )
    step = max(-(-len(outputs) // _CHECKED), 1)
    most, tolerance = classifier.difference(outputs[::step])
    if not most <= tolerance:
        raise UsageError(
            f"The linear classifier does not reproduce the logits: with feature "
            f"{classifier.feature!r} they differ by up to {most:.3g}, and the tolerance is "
            f"{tolerance:.3g}. Extract features and logits in one pass of the same weights."
        )
    return classifier


def _all(parts: Sequence[Tensor | None]) -> Tensor | None:
    """One after the other; nothing where one is missing."""
    found = [part for part in parts if part is not None]
    return torch.cat(found) if len(found) == len(parts) else None


def _is_half(values: Tensor) -> bool:
    """Whether these are numbers of 16 bits, as of a model that computes in them."""
    return any(torch.equal(values.to(half).to(values.dtype), values) for half in _HALVES)


def _range(values: Tensor) -> tuple[str, str]:
    """The lowest and the highest value."""
    if not values.numel():
        return "", ""
    low, high = values.detach().aminmax()
    return f"{low.item():.4g}", f"{high.item():.4g}"
