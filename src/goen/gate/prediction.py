"""What a gate says of images."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goen.functional import conformal

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """What the gate says of N images; every array has length N.

    Attributes:
        label: the classifier's class number; ``classes[label]`` is its name.
        confidence: the classifier's probability of that class.
        score: higher means more OOD.
        p_value: the chance that an image like the held-out ones would score at least this high.
        probability: of being OOD, where OOD images took part in the fit; else ``None``.
        is_ood: the decision, p_value at most the false-alarm rate.
        cues: what the score was made of, by name.
        classes: the class names.
        cue_p_values: the p-value of each cue alone, by name: which of them spoke.
    """

    label: NDArray[np.int64]
    confidence: Floats
    score: Floats
    p_value: Floats
    probability: Floats | None
    is_ood: NDArray[np.bool_]
    cues: Mapping[str, Floats]
    classes: tuple[str, ...]
    cue_p_values: Mapping[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.label)

    def explain(self, row: int = 0) -> str:
        """Why image ``row`` was judged so, one cue after the other.

        Such as ``layer2: p = 0.0002, layer4: p = 0.31, entropy: p = 0.44``.
        """
        told = self.cue_p_values or self.cues
        sign = "p = " if self.cue_p_values else ""
        return ", ".join(f"{name}: {sign}{values[row]:.2g}" for name, values in told.items())

    def discoveries(self, rate: float) -> NDArray[np.bool_]:
        """Which of these images to flag so that at most ``rate`` of the flags are false.

        On average, and over this batch as a whole: Benjamini and Hochberg on the p-values. The
        false-alarm rate bounds the share of ID images that are flagged; this bounds the share of
        flagged images that are ID. Images must be independent of each other.
        """
        return conformal.benjamini_hochberg(self.p_value, rate)


def concatenate(parts: list[Prediction]) -> Prediction:
    """The predictions of several batches as one."""

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    def by_name(name: str) -> dict[str, Floats]:
        held = [getattr(part, name) for part in parts]
        return {cue: np.concatenate([values[cue] for values in held]) for cue in held[0]}

    first = parts[0]
    return Prediction(
        label=joined("label"),
        confidence=joined("confidence"),
        score=joined("score"),
        p_value=joined("p_value"),
        probability=None if first.probability is None else joined("probability"),
        is_ood=joined("is_ood"),
        cues=by_name("cues"),
        classes=first.classes,
        cue_p_values=by_name("cue_p_values"),
    )
