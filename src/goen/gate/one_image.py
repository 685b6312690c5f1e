"""The prediction for one image: its values, what each cue contributes, its nearest neighbours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class ImagePrediction:
    """What a gate returns for one image: ``prediction[row]``.

    Attributes:
        label: the classifier's class number.
        class_name: of that class.
        confidence: the classifier's probability of that class.
        score: higher means more OOD.
        p_value: the probability that an ID image scores at least this high.
        probability: P(OOD) at 50 % prevalence, if the gate was fitted with OOD images.
        is_ood: the decision.
        cues: the quantities that the score combines, by name.
        cue_p_values: the p-value of each cue alone, by name.
        path: of the file, if it was predicted from one.
        accepted: whether the class may be used, of a gate with an error rate.
        new_class: whether it is one that the classifier was not trained on, if the gate has such.
    """

    label: int
    class_name: str
    confidence: float
    score: float
    p_value: float
    probability: float | None
    is_ood: bool
    cues: Mapping[str, float]
    cue_p_values: Mapping[str, float]
    path: str | None = None
    accepted: bool | None = None
    new_class: bool | None = None


class ExplainedCue(NamedTuple):
    """One cue of an image: its value, and how unusual that is for an ID image, if it is known."""

    name: str
    value: float
    p_value: float | None


@dataclass(frozen=True)
class Explanation:
    """Why an image was flagged or not.

    Attributes:
        label: the name of the predicted class.
        p_value: of the score.
        is_ood: the decision.
        cues: in the order of the detector.
    """

    label: str
    p_value: float
    is_ood: bool
    cues: tuple[ExplainedCue, ...]

    @property
    def most_unusual(self) -> ExplainedCue:
        """The cue with the least p-value."""
        return min(self.cues, key=lambda cue: 1.0 if cue.p_value is None else cue.p_value)

    def __str__(self) -> str:
        """Such as ``layer2: p = 0.0002, layer4: p = 0.31, entropy: p = 0.44``."""
        return ", ".join(
            f"{name}: {value:.2g}" if p_value is None else f"{name}: p = {p_value:.2g}"
            for name, value, p_value in self.cues
        )


class TrainingRow(NamedTuple):
    """One training image.

    Attributes:
        row: its number among all training images in their order, from 0.
        label: the class number it was trained with.
        name: of that class.
        distance: between unit vectors of the layer's features, Euclidean.
    """

    row: int
    label: int
    name: str
    distance: float


NearestImages = dict[str, tuple[TrainingRow, ...]]
"""The training images nearest to one image, in each layer, the nearest first."""
