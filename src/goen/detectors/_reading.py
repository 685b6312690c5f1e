"""What a detector reads of outputs: the features, the classifier, and checks of both."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.errors import NotFittedError, UsageError, warn
from goen.functional._rows import blocks, check_features, check_finite_for_fit, check_labels
from goen.outputs import Outputs, check_classifier


class OutputsReader:
    """Reads the same features of all outputs: those of the outputs that it was fitted on."""

    needs_fit: ClassVar[bool] = True
    """Whether there is anything to learn from training images; else ``score`` works at once."""

    needs_classifier: ClassVar[bool] = False
    """Whether it reads the weights of the network's linear classifier, ``Outputs.classifier``."""

    made_for_relu: ClassVar[bool] = False
    """Whether it assumes features behind a ReLU; a fit then warns of negative values."""

    reads_all_features: bool = False
    """Whether ``feature=None`` means all features of the outputs rather than the last."""

    widths_: Mapping[str, int] | None = None
    """The features that it was fitted on, with their widths."""

    num_classes_: int = 0
    """The classes that it was fitted on."""

    @property
    def is_fitted(self) -> bool:
        """Whether ``score`` can be called."""
        return not self.needs_fit or self.widths_ is not None

    @property
    def features(self) -> tuple[str, ...]:
        """The features that it reads of the outputs, once it is fitted."""
        return tuple(self.widths_ or ())

    @property
    def features_width(self) -> int:
        """The width of all features that it was fitted on, side by side."""
        return sum((self.widths_ or {}).values())

    @final
    def feature_names(self, outputs: Outputs) -> tuple[str, ...]:
        """The features that it reads of these outputs."""
        if self.widths_ is not None:
            return tuple(self.widths_)
        if self.needs_classifier:
            return (check_classifier(outputs).feature,)
        wanted: str | Sequence[str] | None = getattr(self, "feature", ())
        if wanted is None:
            return tuple(outputs.features) if self.reads_all_features else (outputs.last_feature,)
        if not isinstance(wanted, str | Sequence):
            raise UsageError(
                f"{type(self).__name__} measures a feature by its name, several by a tuple of "
                f"names, or its default with None, got feature={wanted!r}."
            )
        return (wanted,) if isinstance(wanted, str) else tuple(wanted)

    @final
    def feature_name(self, outputs: Outputs) -> str:
        """The one feature that it reads of these outputs.

        Raises:
            UsageError: it was given several.
        """
        names = self.feature_names(outputs)
        if len(names) != 1:
            raise UsageError(
                f"{type(self).__name__} measures one feature, got feature={names!r}. Name one of "
                "them; KNN, MaSF and MultilayerMahalanobis measure several."
            )
        return names[0]

    @final
    def feature_rows(self, outputs: Outputs) -> Tensor:
        """The one feature that it reads, ``(N, D)``."""
        return outputs.feature(self.feature_name(outputs))

    @final
    def classifier(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        """Weight ``(C, D)`` and bias ``(C,)`` of the linear classifier behind that feature."""
        found = outputs.classifier
        assert found is not None, "only a detector that needs_classifier is fitted with one"
        device = outputs.feature(found.feature).device
        return found.weight.to(device, torch.float64), found.bias.to(device, torch.float64)

    @final
    def forget(self) -> None:
        """Remove what was fitted."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            del vars(self)[name]

    def class_sums(self) -> tuple[Tensor, Tensor] | None:
        """What it keeps of each class: sums ``(C, D)`` of unit vectors of its last feature, counts.

        ``None`` if it keeps nothing that new classes could join.
        """
        return None

    def add_classes(self, num_classes: int) -> None:
        """Make room for further classes, up to so many; ``update`` adds their images."""
        self.num_classes_ = num_classes

    @final
    def _begin(self, outputs: Outputs, labels: Tensor) -> None:
        """Check training outputs; of the first ones, note the features that are read."""
        self._check_outputs(outputs)
        check_labels(labels, len(outputs), outputs.logits.shape[1])
        if not len(outputs):
            raise UsageError(f"{type(self).__name__} was given no outputs to fit.")
        rows = {name: outputs.feature(name) for name in self.feature_names(outputs)}
        for values in rows.values():
            check_features(values)
            check_finite_for_fit(values)
            if self.made_for_relu:
                self._warn_of_negative(values)
        self.num_classes_ = outputs.logits.shape[1]
        self.widths_ = {name: values.shape[1] for name, values in rows.items()}

    def _warn_of_negative(self, values: Tensor) -> None:
        if float(values.amin()) < 0:
            count = sum(int((values[block] < 0).sum()) for block in blocks(len(values)))
            share = count / values.numel()
            warn(
                f"{type(self).__name__} is made for features behind a ReLU, and {share:.0%} of "
                "these values are negative: on such networks it often ranks ID above OOD. Compare "
                "it with another detector, such as max_softmax, before you use it."
            )

    @final
    def _check(self, outputs: Outputs) -> None:
        """Raise an error unless these outputs can be scored."""
        if not self.is_fitted:
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted. Call fit(outputs, labels), or load a "
                "saved gate."
            )
        self._check_outputs(outputs)

    @final
    def _check_outputs(self, outputs: Outputs) -> None:
        """Raise a ``UsageError`` unless these are outputs, of the network that it is fitted on."""
        check_features(outputs.logits)
        outputs.check_counts()
        if self.widths_ is None:
            return
        if outputs.logits.shape[1] != self.num_classes_:
            raise UsageError(
                f"{type(self).__name__} was fitted on outputs of {self.num_classes_} classes, got "
                f"{outputs.logits.shape[1]}. Different network?"
            )
        for name, width in self.widths_.items():
            check_features(outputs.feature(name), width)
