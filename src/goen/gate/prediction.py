"""Predictions: what a gate returns for images."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from goen.data.imageset import row_numbers
from goen.errors import DataError, ExtraMissing, GoenWarning, UsageError
from goen.functional import conformal
from goen.functional.ranking import Floats
from goen.gate.nearest_rows import NearestRows, TrainingRow, join_neighbours
from goen.notebook import MOST_ROWS

if TYPE_CHECKING:
    import pandas

    from goen.gate.prediction_table import PredictionTable, Shown


@dataclass(frozen=True)
class Prediction:
    """The outputs of a gate for N images; every array has length N.

    Attributes:
        label: the classifier's class number; ``classes[label]`` is its name.
        confidence: the classifier's probability of that class.
        score: higher means more OOD.
        p_value: conformal: the probability that an ID image scores at least this high.
        probability: P(OOD) at 50 % prevalence, if the gate was fitted with OOD images; else
            ``None``.
        is_ood: the decision: whether p_value is at most the false-alarm rate.
        cues: the quantities that the score combines, by name.
        classes: the class names.
        cue_p_values: the p-value of each cue alone, by name: which cues are unusual.
        num_held_out: the number of held-out images behind the p-values, the fewest of any class if
            the gate has a threshold per class: no p-value is below 1 / (num_held_out + 1).
        neighbours: the nearest training images in each layer, by the layer's name, if they were
            asked for; see ``nearest``.
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
    num_held_out: int | None = None
    neighbours: Mapping[str, NearestRows] | None = None

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: Sequence[int]) -> "Prediction":
        """The prediction for these images, in this order."""
        wanted = row_numbers(rows)

        def by_name(values: Mapping[str, Floats]) -> dict[str, Floats]:
            return {name: column[wanted] for name, column in values.items()}

        return replace(
            self,
            label=self.label[wanted],
            confidence=self.confidence[wanted],
            score=self.score[wanted],
            p_value=self.p_value[wanted],
            probability=None if self.probability is None else self.probability[wanted],
            is_ood=self.is_ood[wanted],
            cues=by_name(self.cues),
            cue_p_values=by_name(self.cue_p_values),
            neighbours=None
            if self.neighbours is None
            else {layer: near.take(wanted) for layer, near in self.neighbours.items()},
        )

    def nearest(self, row: int = 0) -> dict[str, tuple[TrainingRow, ...]]:
        """The training images nearest to image ``row`` in each layer, the nearest first.

        They are the nearest of those that the gate keeps. None are given for an image for which
        the network's outputs are not finite.

        Raises:
            UsageError: the prediction was made without them, or by a gate that keeps none.
        """
        if self.neighbours is None:
            raise UsageError(
                "This prediction has no nearest training images: ask for them with "
                "gate.predict(images, nearest=3)."
            )
        return {layer: near.of(row, self.classes) for layer, near in self.neighbours.items()}

    def to_pandas(self) -> "pandas.DataFrame":
        """A row per image, with the columns of ``goen score``: class name, score, p-values, cues.

        Raises:
            ExtraMissing: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ExtraMissing("A table needs pandas: pip install pandas.") from error
        from goen.gate.score_files import p_value_column  # it needs a gate, which needs this module

        names = np.array([*self.classes, ""], dtype=object)
        columns: dict[str, NDArray[Any]] = {
            "label": names[self.label],
            "confidence": self.confidence,
            "score": self.score,
            "p_value": self.p_value,
        }
        if self.probability is not None:
            columns["probability"] = self.probability
        columns["is_ood"] = self.is_ood
        columns |= {f"cue_{name}": values for name, values in self.cues.items()}
        columns |= {p_value_column(name): p for name, p in self.cue_p_values.items()}
        return pandas.DataFrame(columns)

    def show(
        self, images: "Shown | None" = None, *, rows: Sequence[int] | None = None, most: int = 20
    ) -> "PredictionTable":
        """A table for notebooks, the most suspicious first, with thumbnails if images are given.

        Args:
            images: those that were predicted: an ``ImageSet``, an array ``(N, C, H, W)``, or a list
                of pictures of Pillow. A prediction keeps no images, so that it stays small.
            rows: which of them, in this order; the most suspicious if not given.
            most: rows of the table.

        Raises:
            UsageError: another number of images.
        """
        from goen.gate.prediction_table import PredictionTable, most_suspicious  # they need this

        if images is not None and len(images) != len(self):
            raise UsageError(
                f"This prediction is of {len(self):,} images, and {len(images):,} are given."
            )
        chosen = most_suspicious(self)[:most] if rows is None else list(rows)
        return PredictionTable(self, chosen, images)

    def _repr_html_(self) -> str:
        return self.show(rows=range(min(len(self), MOST_ROWS)))._repr_html_()

    def explain(self, row: int = 0) -> str:
        """The p-value of each cue of image ``row``; its value where there is no p-value.

        For example ``layer2: p = 0.0002, layer4: p = 0.31, entropy: p = 0.44``.
        """
        shown = self.cue_p_values or self.cues
        sign = "p = " if self.cue_p_values else ""
        return ", ".join(f"{name}: {sign}{values[row]:.2g}" for name, values in shown.items())

    def discoveries(self, rate: float) -> NDArray[np.bool_]:
        """Which of these images to flag so that at most ``rate`` of the flags are false.

        Benjamini and Hochberg's procedure on the p-values of this batch; the bound holds on
        average. The false-alarm rate bounds the share of ID images that are flagged; this bounds
        the share of flagged images that are ID. Images must be independent of each other.

        With few held-out images no p-value is small enough for a few images of a large batch to be
        found; a ``GoenWarning`` gives the numbers then.
        """
        found = conformal.benjamini_hochberg(self.p_value, rate)
        possible = self.num_held_out is None or len(self) <= rate * (self.num_held_out + 1)
        if not possible and self.num_held_out is not None and not found.any():
            needed = math.ceil(len(self) / (rate * (self.num_held_out + 1)))
            enough = math.ceil(len(self) / rate) - 1
            warnings.warn(
                f"With {self.num_held_out} held-out images and a batch of {len(self)}, discoveries "
                f"at a rate of {rate:g} finds nothing unless at least {needed} images have the "
                f"least possible p-value. {enough} held-out images would let it find a single one.",
                GoenWarning,
                stacklevel=2,
            )
        return found


def concatenate(parts: list[Prediction]) -> Prediction:
    """The predictions of several batches as one.

    Raises:
        DataError: there are no batches.
    """
    if not parts:
        raise DataError("Cannot concatenate: there are no batches.")

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    def by_name(name: str) -> dict[str, Floats]:
        held = [getattr(part, name) for part in parts]
        return {cue: np.concatenate([values[cue] for values in held]) for cue in held[0]}

    first = parts[0]
    neighbours = [part.neighbours for part in parts if part.neighbours is not None]
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
        num_held_out=first.num_held_out,
        neighbours=join_neighbours(neighbours) if len(neighbours) == len(parts) else None,
    )
