"""What all detectors share: ``fit``, ``score``, cues, and their state as tensors."""

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from goen.detectors._bank import NearestImages
from goen.errors import NotFittedError, UsageError, quoted, warn
from goen.functional._rows import (
    blocks,
    cached_blocks,
    check_features,
    check_finite_for_fit,
    check_labels,
)
from goen.io.manifest import JsonObject, JsonValue
from goen.io.tensors import Shape, Tensors
from goen.outputs import Outputs, check_classifier


class Expected(NamedTuple):
    """What a tensor of a saved state must be: finite numbers of this shape, range and type."""

    shape: Shape
    low: float = -math.inf
    high: float = math.inf
    dtype: torch.dtype = torch.float64


class Detector(ABC):
    """``Outputs`` in, scores out: ``(N,)`` float64, higher means more OOD.

    To write one, store the constructor's keyword arguments under their own names and implement two
    methods: ``_fit`` keeps what it learns as tensors in attributes whose names end in ``_``, and
    ``_score`` turns outputs into scores by means of them. Then it can be compared, be the detector
    of a gate, be saved with it, and be exported if torch can trace ``_score``. A detector that
    reads features has an attribute ``feature``: a name, several names, or ``None`` for the last
    feature of the outputs that it is fitted on; these are finite when ``_fit`` is called.

    A detector with several *cues* (named quantities that its score combines) implements ``_cues``,
    ``score_cues`` and ``cue_names`` as well; any other has one cue, its score. One that needs ID
    images beside the training images, or uses OOD images, implements ``_calibrate``.

    Example:
        >>> class Mean(Detector):
        ...     name = "mean"
        ...     def __init__(self, *, feature=None): self.feature = feature
        ...     def _fit(self, outputs, labels): self.mean_ = self.feature_rows(outputs).mean(dim=0)
        ...     def _score(self, outputs): return self.feature_rows(outputs) @ -self.mean_
        >>> outputs = Outputs(torch.zeros(2, 2), {"z": torch.tensor([[3.0, 4.0], [3.0, 0.0]])})
        >>> Mean().fit(outputs, torch.tensor([0, 1])).score(outputs)
        tensor([-17.,  -9.], dtype=torch.float64)
    """

    name: ClassVar[str]
    """Of the method, in manifests and as the name of its only cue; else made from the class's."""

    needs_fit: ClassVar[bool] = True
    """Whether there is anything to learn from training images; else ``score`` works at once."""

    needs_classifier: ClassVar[bool] = False
    """Whether it reads the weights of the network's linear classifier, ``Outputs.classifier``."""

    needs_gradient: ClassVar[bool] = False
    """Whether it scores outputs of ``prepare_network``, which takes gradients of the network."""

    made_for_relu: ClassVar[bool] = False
    """Whether it assumes features behind a ReLU; a fit then warns of negative values."""

    reads_all_features: bool = False
    """Whether ``feature=None`` means all features of the outputs rather than the last."""

    needs_ood: ClassVar[bool] = False
    """Whether OOD images must take part in its fit."""

    can_update: bool = False
    """Whether ``update`` adds training images to what was fitted; it implements ``_add``."""

    saved: ClassVar[bool] = True
    """Whether its state can be saved and exported."""

    widths_: Mapping[str, int] | None = None
    """The features that it was fitted on, with their widths."""

    num_classes_: int = 0
    """The classes that it was fitted on."""

    def require_library(self) -> None:  # noqa: B027  (most need none)
        """Raise an ``ExtraMissing`` if its fit needs a library that is not here."""

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        """Learn from these outputs and their labels ``(N,)``."""
        if self.can_update:
            self._add(outputs, labels)

    def _add(self, outputs: Outputs, labels: Tensor) -> None:  # noqa: B027  (most cannot)
        """Learn from further outputs and their labels ``(N,)``, and forget a calibration."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    @abstractmethod
    def _score(self, outputs: Outputs) -> Tensor:
        """The scores ``(N,)`` of any float type, of each row by itself: few rows come at a time."""

    def _cues(self, outputs: Outputs) -> Tensor:
        """The cues ``(N, K)`` of any float type."""
        scores, by = self._score(outputs), f"{type(self).__name__}._score"
        if torch.compiler.is_compiling():
            return scores[:, None]
        if not isinstance(scores, Tensor) or scores.shape != (len(outputs),):
            is_tensor = isinstance(scores, Tensor)
            got = f"a tensor {tuple(scores.shape)}" if is_tensor else type(scores).__name__
            raise UsageError(
                f"{by} should give one score per image, a tensor ({len(outputs)},), got {got}."
            )
        return scores[:, None]

    def score_cues(self, cues: Tensor) -> Tensor:
        """Score ``(N,)`` float64 of cues ``(N, K)``."""
        return cues[:, 0]

    def _prepare(self) -> None:  # noqa: B027  (most need nothing)
        """Compute once, from what was learnt, what every score needs and no state holds."""

    def calibrates(self, *, with_ood: bool) -> bool:
        """Whether its fit needs ID images that are not training images."""
        return False

    @property
    def uses_ood(self) -> bool:
        """Whether OOD images can take part in its fit."""
        return self.calibrates(with_ood=True)

    def _calibrate(  # noqa: B027  (most need nothing)
        self, held_out: Outputs, ood: Mapping[str, Outputs]
    ) -> None:
        """Learn from ID images that are not training images, and from OOD images by name."""

    def _set_apart(self, outputs: Outputs, labels: Tensor) -> tuple[Outputs, Tensor, Outputs]:
        """The training outputs and labels, and some set apart to calibrate on."""
        return outputs, labels, outputs

    def prepare_network(self, network: nn.Module) -> nn.Module:
        """The network whose outputs it scores."""
        return network

    @property
    def cue_names(self) -> tuple[str, ...]:
        """K names, in the order of the columns of ``cues``."""
        return (self.name,)

    @property
    def cue_weights(self) -> Mapping[str, float]:
        """The weight of each cue in the score, where the score is a weighted sum."""
        return {}

    @property
    def description(self) -> str:
        """What the score is, in a sentence or two."""
        return (type(self).__doc__ or "").partition("\n")[0]

    @property
    def cue_directions(self) -> tuple[int, ...]:
        """Of each cue 1, or -1 where a low value is unusual."""
        return (1,) * len(self.cue_names)

    @property
    def chosen(self) -> "Detector":
        """The detector of a gate that was fitted with it: itself, unless it chooses another."""
        return self

    @property
    @final
    def has_probability(self) -> bool:
        """Whether OOD images took part in the fit, so that ``probability`` is known."""
        return self.probability(torch.zeros(0, dtype=torch.float64)) is not None

    def probability(self, score: Tensor) -> Tensor | None:
        """P(OOD) of scores ``(N,)`` at 50 % prevalence; ``None`` without OOD images in the fit."""
        return None

    def calibrated(self, outputs: Outputs) -> Outputs:
        """The outputs whose softmax is this method's class probabilities: most leave them alone."""
        return outputs

    def nearest(self, outputs: Outputs, count: int) -> Mapping[str, NearestImages]:
        """The ``count`` nearest training images in each layer; empty if it keeps no images."""
        return {}

    @property
    def num_kept(self) -> tuple[int, int]:
        """How many training images ``nearest`` chooses from, and how many there were."""
        return 0, 0

    @final
    def fit(
        self,
        outputs: Outputs,
        labels: Tensor,
        *,
        held_out: Outputs | None = None,
        ood: Mapping[str, Outputs] | None = None,
    ) -> Self:
        """Forget everything and fit these outputs; a fit that fails changes nothing.

        Args:
            outputs: of the training images.
            labels: ``(N,)``.
            held_out: of ID images that trained nothing, for detectors that ``calibrates``. Without
                them such a detector sets some training images apart.
            ood: of each OOD set, by name, for detectors that can use OOD images.

        Raises:
            UsageError: outputs that do not belong together, or lack what the method reads.
            FitError: outputs that the method cannot be fitted on.
        """
        with self._unchanged_by_errors():
            self.forget()
            self._begin(outputs, labels)
            calibrating = self.calibrates(with_ood=bool(ood))
            if calibrating and held_out is None:
                outputs, labels, held_out = self._set_apart(outputs, labels)
            self._learn(outputs, labels)
            if calibrating and held_out is not None:
                self.calibrate(held_out, ood)
        return self

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        earlier = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(earlier)
            raise

    @final
    def fit_training(self, outputs: Outputs, labels: Tensor) -> Self:
        """The part of ``fit`` that reads training images; ``calibrate`` is the other."""
        self.forget()
        self._begin(outputs, labels)
        self._learn(outputs, labels)
        return self

    @final
    def _learn(self, outputs: Outputs, labels: Tensor) -> None:
        with torch.no_grad():
            self._fit(outputs, labels)
            self._prepare()

    @final
    def calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs] | None = None) -> Self:
        """Calibrate a fitted detector with ID images that it was not fitted on; see ``fit``."""
        for part in (held_out, *(ood or {}).values()):
            self._check(part)
        self._calibrate(held_out, ood or {})
        return self

    keeps_calibration: ClassVar[bool] = False
    """Whether ``recalibrate`` needs only what is new."""

    ood_cues_: Mapping[str, Tensor] = MappingProxyType({})
    """The cues of the OOD images that it was calibrated with, as far as they are kept."""

    def recalibrate(self, held_out: Outputs | None, ood: Mapping[str, Outputs]) -> None:
        """Calibrate again; with ``keeps_calibration`` what is not given stays as it was."""
        assert held_out is not None, "only a detector that keeps its calibration goes without"
        self.calibrate(held_out, ood)

    @final
    def update(self, outputs: Outputs, labels: Tensor) -> Self:
        """Add training images, in any chunks; what was calibrated is forgotten.

        Raises:
            UsageError: this method cannot be fitted in parts.
        """
        if not self.can_update:
            raise UsageError(
                f"{type(self).__name__} is fitted on all training images at once: fit it again."
            )
        with self._unchanged_by_errors():
            self._begin(outputs, labels)
            self._add(outputs, labels)
        return self

    @final
    def score(self, outputs: Outputs) -> Tensor:
        """One number per image, ``(N,)`` float64; higher means more OOD.

        Raises:
            NotFittedError: nothing was fitted yet.
            UsageError: a score is NaN or infinite, because the outputs are.
        """
        scores = self.score_cues(self.cues(outputs))
        bad = int((~torch.isfinite(scores)).sum())
        if bad:
            raise UsageError(
                f"{bad} of {len(scores)} scores of {type(self).__name__} are not finite. Check the "
                "images and the network that gave these outputs."
            )
        return scores

    @final
    def cues(self, outputs: Outputs) -> Tensor:
        """The cues of each image, ``(N, K)`` float64."""
        with torch.no_grad():
            if torch.compiler.is_compiling():  # a program is traced with outputs that were checked
                return self._cues(outputs).to(torch.float64)
            self._check(outputs)
            logits = outputs.logits
            width = max([logits.shape[1], *(self.widths_ or {}).values()])
            parts = [
                self._cues(outputs[block]).to(torch.float64)
                for block in cached_blocks(len(logits), width, logits.device)
            ]
        return torch.cat(parts)

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

    @final
    def settings(self) -> dict[str, JsonValue]:
        """The arguments of its constructor, as JSON."""
        found = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return {name: _as_json(value) for name, value in found.items()}

    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt, as tensors by name."""
        return {
            name.removesuffix("_"): value
            for name, value in vars(self).items()
            if name.endswith("_") and isinstance(value, Tensor)
        }

    def _load(self, tensors: Tensors) -> None:
        """Take what ``state`` gave; a ``ValueError`` names a tensor it cannot have given."""
        expected = self._expected()
        if not expected:
            tensors.check_finite()
        else:
            tensors.check_names(expected)
        sizes: dict[str | int, int] = {}  # of one name is one size
        for name, (shape, low, high, dtype) in expected.items():
            wanted = tuple(sizes.get(size, size) for size in shape)
            found = tensors.floats(name, wanted, low=low, high=high, dtype=dtype)
            sizes |= dict(zip(shape, found.shape, strict=True))
        for name, value in tensors.items():
            setattr(self, f"{name}_", value)

    def _expected(self) -> Mapping[str, Expected]:
        """What each tensor of ``state`` must be, since a file may come from anyone.

        ``widths_`` and ``num_classes_`` are known; a size with a name is the same in all tensors.
        Where this is empty, all finite tensors will do.
        """
        return {}

    @classmethod
    def from_settings(cls, settings: JsonObject) -> Self:
        """A detector with these arguments, as ``settings`` gives them; not fitted."""
        known = inspect.signature(cls).parameters
        unknown = sorted({*settings} - {*known})
        if unknown:
            raise ValueError(f"it has unknown settings: {', '.join(unknown)[:200]}")
        for name, value in settings.items():
            if isinstance(known[name].default, bool) and not isinstance(value, bool):
                raise ValueError(f"its {name} should be true or false, got {quoted(value)}")
        try:
            return cls(**{name: cls._setting(name, value) for name, value in settings.items()})
        except TypeError as error:
            raise ValueError(f"its settings are of the wrong type: {error}") from error

    @classmethod
    def _setting(cls, name: str, value: JsonValue) -> object:
        """An argument of the constructor from its JSON."""
        return tuple(value) if isinstance(value, list) else value

    @final
    def load_state(
        self, state: Mapping[str, Tensor], widths: Mapping[str, int], classes: int
    ) -> Self:
        """Take what ``state``, ``widths_`` and ``num_classes_`` of a fitted detector were.

        Raises:
            ValueError: a tensor that this detector cannot have learnt; the message names it.
        """
        self.forget()
        self.widths_, self.num_classes_ = dict(widths), classes
        self._load(Tensors.of(state))
        self._prepare()
        return self

    @final
    def __repr__(self) -> str:
        """The class and the arguments that differ from their defaults, as scikit-learn prints."""
        parameters = inspect.signature(type(self)).parameters
        arguments = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in parameters.items()
            if getattr(self, name) != parameter.default
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"


def _as_json(value: object) -> JsonValue:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, tuple | list):
        return [_as_json(part) for part in value]
    assert value is None or isinstance(value, bool | int | float | str), value
    return value
