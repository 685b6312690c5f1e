"""What all detectors share: ``fit``, ``score``, and for methods with several cues, ``cues``."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from goen.detectors._bank import NearestImages
from goen.errors import ArtifactError, NotFittedError, UsageError
from goen.functional._rows import check_features, check_labels
from goen.functional.conformal import p_values_of_sorted
from goen.outputs import Outputs
from goen.runs.manifest import JsonObject
from goen.runs.tensors import Tensors

_FEATURE = "feature_name"
"""In a state: the UTF-8 bytes of the feature that was chosen when it was fitted."""


class Detector(ABC):
    """``Outputs`` in, scores out: ``(N,)`` float64, higher means more OOD.

    A constructor only stores its arguments; ``fit`` returns the detector itself, and fitted values
    end in ``_``. To write one, subclass ``SimpleDetector``.
    """

    @abstractmethod
    def fit(self, outputs: Outputs, labels: Tensor) -> Self:
        """Forget everything and fit the outputs of the training images, with their labels."""

    @abstractmethod
    def score(self, outputs: Outputs) -> Tensor:
        """One number per image, ``(N,)`` float64; higher means more OOD."""

    def calibrated(self, outputs: Outputs) -> Outputs:
        """The outputs whose softmax is this method's class probabilities: most leave them alone."""
        return outputs

    @final
    def _check_fit(self, outputs: Outputs, labels: Tensor) -> None:
        """Raise a ``UsageError`` unless these are outputs, at least one, with a label each."""
        check_features(outputs.logits)
        outputs.check_counts()
        check_labels(labels, len(outputs), outputs.logits.shape[1])
        if not len(outputs):
            raise UsageError(f"{type(self).__name__} was given no outputs to fit.")

    @final
    def _finite(self, scores: Tensor) -> Tensor:
        """The scores; a ``UsageError`` if one is NaN or infinite, because the outputs are."""
        bad = int((~torch.isfinite(scores)).sum())
        if bad:
            raise UsageError(
                f"{bad} of {len(scores)} scores of {type(self).__name__} are not finite. Check the "
                "images and the network that gave these outputs."
            )
        return scores

    @final
    def __repr__(self) -> str:
        """The class and the arguments that differ from their defaults, as scikit-learn prints."""
        arguments = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if isinstance(value, Tensor):
                arguments.append(f"{name}=<{'×'.join(map(str, value.shape))} tensor>")
            elif value != parameter.default:
                arguments.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(arguments)})"


class SimpleDetector(Detector):
    """A detector whose fitted values are plain tensors.

    A subclass has a constructor that stores its arguments, and two methods: ``_learn``
    returns everything it takes from the training outputs as named tensors, ``_measure`` turns
    outputs into scores by means of ``fitted_``. This class checks what comes in, and saves and
    loads the state; ``_check_state`` may check one that is loaded. A detector that measures a
    feature has an attribute ``feature``: a name, several names, or ``None`` for the last feature of
    the outputs it is fitted on.

    Example:
        >>> class Norm(SimpleDetector):
        ...     needs_fit = False
        ...     def _learn(self, outputs, labels): return {}
        ...     def _measure(self, outputs): return -outputs.features["z"].norm(dim=1)
        >>> outputs = Outputs(torch.zeros(2, 2), {"z": torch.tensor([[3.0, 4.0], [0.0, 1.0]])})
        >>> Norm().score(outputs)
        tensor([-5., -1.], dtype=torch.float64)
    """

    needs_fit: ClassVar[bool] = True
    """Whether there is anything to learn; else ``score`` works without ``fit``."""

    fitted_: Mapping[str, Tensor] | None = None
    """What was learnt, by name."""

    feature_: str | None = None
    """The feature that ``feature=None`` became when it was fitted."""

    @abstractmethod
    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        """Everything that scoring needs of these outputs and their labels ``(N,)``."""

    @abstractmethod
    def _measure(self, outputs: Outputs) -> Tensor:
        """The scores ``(N,)`` of any float type."""

    def _prepare(self) -> None:
        """Compute once, from ``fitted_``, what every score needs and no state holds.

        Called after each ``fit`` and ``load_state``. Most methods need nothing.
        """

    @final
    def fit(self, outputs: Outputs, labels: Tensor) -> Self:
        """Forget everything and learn from these outputs."""
        earlier = self.feature_, self.fitted_
        try:
            self.feature_ = outputs.last_feature if self._chooses_feature else None
            self._check(outputs)
            self._check_fit(outputs, labels)
            with torch.no_grad():
                self.fitted_ = dict(self._learn(outputs, labels))
                self._prepare()
        except BaseException:
            self.feature_, self.fitted_ = earlier  # a fit that fails changes nothing
            raise
        return self

    @final
    def score(self, outputs: Outputs) -> Tensor:
        """One number per image, ``(N,)`` float64; higher means more OOD.

        Raises:
            NotFittedError: nothing was fitted yet.
            UsageError: a score is NaN or infinite, because the outputs are; or ``_measure`` does
                not give one number per image.
        """
        self._check(outputs)
        if self.needs_fit and self.fitted_ is None:
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted. Call fit(outputs, labels), or "
                "load_state(...) with a saved state."
            )
        with torch.no_grad():
            scores = self._measure(outputs)
        check_scores(scores, len(outputs), f"{type(self).__name__}._measure")
        return self._finite(scores.to(torch.float64))

    @property
    def _chooses_feature(self) -> bool:
        return getattr(self, "feature", "") is None

    @final
    def feature_names(self, outputs: Outputs) -> tuple[str, ...]:
        """The features it measures of these outputs."""
        wanted: str | Sequence[str] | None = getattr(self, "feature", ())
        if wanted is None:
            wanted = self.feature_ or outputs.last_feature
        if not isinstance(wanted, str | Sequence):
            raise UsageError(
                f"{type(self).__name__} measures a feature by its name, several by a tuple of "
                f"names, or the last with None, got feature={wanted!r}."
            )
        return (wanted,) if isinstance(wanted, str) else tuple(wanted)

    @final
    def feature_name(self, outputs: Outputs) -> str:
        """The one feature it measures of these outputs.

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
    def rows(self, outputs: Outputs) -> Tensor:
        """The one feature it measures, ``(N, D)``."""
        return outputs.feature(self.feature_name(outputs))

    @final
    def _check(self, outputs: Outputs) -> None:
        check_features(outputs.logits)
        outputs.check_counts()
        for name in self.feature_names(outputs):
            outputs.feature(name)

    @final
    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt, for an artifact."""
        if self.needs_fit and self.fitted_ is None:
            raise NotFittedError(f"This {type(self).__name__} is not fitted: nothing to save.")
        state = dict(self.fitted_ or {})
        if self.feature_ is not None:
            name = list(self.feature_.encode())
            state[_FEATURE] = torch.tensor(name, dtype=torch.uint8, device="cpu")
        return state

    @final
    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        """Take what ``state`` gave.

        Raises:
            ArtifactError: a tensor that this detector cannot have learnt; the message names it.
        """
        tensors = Tensors.of(state)
        fitted = Tensors({k: v for k, v in tensors.items() if k != _FEATURE}, tensors.prefix)
        try:
            feature = _feature_name(tensors) if _FEATURE in tensors else None
            self._check_state(fitted)
        except ValueError as error:
            raise ArtifactError(
                f"This is not the state of a fitted {type(self).__name__}: {error}. Fit it again."
            ) from error
        self.feature_, self.fitted_ = feature, dict(fitted)
        self._prepare()
        return self

    def _check_state(self, tensors: Tensors) -> None:
        """Raise a ``ValueError`` unless ``_learn`` can have given these tensors.

        Of a method that does not override this, only that all numbers are finite is known.
        """
        tensors.check_finite()


class CueDetector(Detector):
    """A detector that computes several cues per image and one score from them.

    A gate needs such a method: its cues explain the score, and their p-values name the cue that
    is unusual. Scoring does not change a fitted detector. ``config`` and ``state`` together hold
    all of it, so that ``from_state(config, state)`` is the same detector again.
    """

    kind: ClassVar[str]
    """The method's name in manifests."""

    _id_cues: Tensor | None = None
    _id_columns: tuple[NDArray[np.float64], ...] = ()

    @property
    def id_cues_(self) -> Tensor | None:
        """Cues ``(n, K)`` of ID images that each cue's p-value is computed against, if any."""
        return self._id_cues

    @id_cues_.setter
    def id_cues_(self, cues: Tensor | None) -> None:
        self._id_cues = cues
        self._id_columns = () if cues is None else sorted_columns(cues)

    @property
    @abstractmethod
    def cue_names(self) -> tuple[str, ...]:
        """K names, in the order of the columns of ``cues``."""

    @property
    @abstractmethod
    def cue_directions(self) -> tuple[int, ...]:
        """Of each cue 1, or -1 where a low value is unusual."""

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """The features it reads of the outputs."""

    @property
    @abstractmethod
    def has_probability(self) -> bool:
        """Whether OOD images took part in the fit, so that ``probability`` is known."""

    @property
    @abstractmethod
    def has_cue_p_values(self) -> bool:
        """Whether ``cue_p_values`` is known."""

    @abstractmethod
    def cues(self, outputs: Outputs) -> Tensor:
        """The cues of each image, ``(N, K)`` float64."""

    @abstractmethod
    def score_cues(self, cues: Tensor) -> Tensor:
        """Score ``(N,)`` float64 of cues ``(N, K)``."""

    @abstractmethod
    def probability(self, score: Tensor) -> Tensor | None:
        """P(OOD) of scores ``(N,)`` at 50 % prevalence; ``None`` without OOD images in the fit."""

    @abstractmethod
    def cue_p_values(self, cues: Tensor) -> Tensor | None:
        """Conformal p-value of each cue alone, ``(N, K)``: small where that cue is unusual."""

    def nearest(self, outputs: Outputs, count: int) -> Mapping[str, NearestImages]:
        """The ``count`` nearest training images in each layer; empty if it keeps no images."""
        return {}

    @property
    def num_kept(self) -> tuple[int, int]:
        """How many training images ``nearest`` chooses from, and how many there were."""
        return 0, 0

    @abstractmethod
    def traceable(self) -> nn.Module:
        """A module from outputs to cues ``(N, K)`` and scores ``(N,)``, both float64.

        Its operations are such that torch.export and ONNX can hold them.
        """

    @abstractmethod
    def config(self) -> JsonObject:
        """Its settings, for a manifest."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything that was learnt, for an artifact."""

    @classmethod
    @abstractmethod
    def from_state(cls, config: JsonObject, state: Mapping[str, Tensor]) -> Self:
        """The detector that ``config`` and ``state`` describe; ``ValueError`` if they disagree."""

    @abstractmethod
    def check_network(self, num_classes: int, widths: Mapping[str, int]) -> None:
        """Raise a ``ValueError`` unless it was fitted on so many classes and such features."""

    @final
    def score(self, outputs: Outputs) -> Tensor:
        """One number per image, ``(N,)`` float64; higher means more OOD.

        Raises:
            NotFittedError: nothing was fitted yet.
            UsageError: a score is NaN or infinite, because the outputs are.
        """
        return self._finite(self.score_cues(self.cues(outputs)))


def check_scores(scores: object, count: int, by: str) -> None:
    """Raise a ``UsageError`` unless these are one number per image; ``by`` is what gave them."""
    if isinstance(scores, Tensor) and scores.shape == (count,):
        return
    got = f"a tensor {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
    raise UsageError(f"{by} should give one score per image, a tensor ({count},), got {got}.")


def _feature_name(tensors: Tensors) -> str:
    """The name of the feature in a state."""
    name = tensors[_FEATURE]
    if name.dtype != torch.uint8 or name.ndim != 1:
        raise ValueError(
            f"its tensor {tensors.prefix}{_FEATURE} should be the bytes of a name, got "
            f"{name.dtype} {tuple(name.shape)}"
        )
    return bytes(name.tolist()).decode("utf-8")


def sorted_columns(cues: Tensor) -> tuple[NDArray[np.float64], ...]:
    """Each column of cues ``(n, K)``, sorted: what ``column_p_values`` compares with."""
    return tuple(np.sort(cues.detach().to("cpu", torch.float64).numpy(), axis=0).T.copy())


def column_p_values(cues: Tensor, reference: Sequence[NDArray[np.float64]]) -> Tensor:
    """The p-value of each column of ``cues`` against a sorted column of ID images.

    Example:
        >>> reference = sorted_columns(torch.tensor([[3.0, 1.0], [1.0, 2.0]]))
        >>> column_p_values(torch.tensor([[2.5, 0.0]]), reference)
        tensor([[0.6667, 1.0000]], dtype=torch.float64)
    """
    out = torch.empty(cues.shape, dtype=torch.float64, device="cpu")
    for column, own, against in zip(out.numpy().T, cues.numpy().T, reference, strict=True):
        column[:] = p_values_of_sorted(own, against)
    return out
