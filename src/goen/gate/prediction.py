"""Predictions: what a gate returns for images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from goen.checks import check_number
from goen.data.images.data_urls import image_url
from goen.data.images.decoding import read_image, read_thumbnail
from goen.data.images.pixel_format import Pixels, to_depth
from goen.data.imageset import ImageSet, row_numbers
from goen.data.sets.folders import AS_THEY_ARE, Paths, are_paths, list_files, open_labelled
from goen.errors import DataError, ExtraMissing, UsageError, warn
from goen.escaping import drawable
from goen.functional.ranking import Floats
from goen.gate.one_image import ExplainedCue, Explanation, ImagePrediction
from goen.notebook import MOST_ROWS, Cell, cut, flag, html_table, p_value_bar, picture

if TYPE_CHECKING:
    import pandas

Shown: TypeAlias = ImageSet | Tensor | NDArray[Any] | Sequence[Image.Image | Path]
_THUMBNAIL = 96
_ARRAYS = (
    *("label", "confidence", "score", "p_value", "probability", "is_ood"),
    *("cues", "cue_p_values", "paths", "accepted", "properties", "new_class"),
)
# Of a prediction in a line each.
_PRINTED = 10

ScoreRow = dict[str, str | float | bool | None]
"""One image in a table: values by column."""
NOT_FINITE = "the network's outputs are NaN or infinite; flagged"
"""The error in the row of such an image."""


@dataclass(frozen=True, eq=False)
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
            the gate has a threshold per class: no p-value is below 1 / (num_held_out + 1). Of
            held-out images in groups it is the number of groups.
        grouped: whether the held-out images come in groups.
        paths: of the files, if it was made from files or a folder.
        accepted: of a gate with an error rate: whether the class may be used, as of ID images at
            most that share of the accepted ones is misclassified; no flagged image is accepted.
        properties: of the images themselves, by name, such as ``brightness``: what
            ``goen.functional.image_properties`` measures. None of a gate that was saved before it
            kept those of its held-out images, or that takes no images.
        weighted: whether p-values and decisions are those under a declared shift: see
            ``goen.DeclaredShift``.
        new_class: of a gate to which ``update`` added classes that its classifier was not trained
            on: whether the label is one of these, by the nearest class mean. ``confidence`` is then
            that of the means.

    ``prediction[0]`` is that of the first image, ``prediction[:10]`` that of the first ten.

    Example:
        >>> import goen
        >>> prediction = goen.load("cifar10-w16").predict(goen.data.load_set("digits").read([0, 1]))
        >>> prediction.is_ood, prediction[0].class_name
        (array([ True,  True]), 'dog')
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
    grouped: bool = False
    paths: NDArray[np.str_] | None = None
    accepted: NDArray[np.bool_] | None = None
    properties: Mapping[str, Floats] = field(default_factory=dict)
    weighted: bool = False
    new_class: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.label)

    @overload
    def __getitem__(self, row: int) -> ImagePrediction: ...
    @overload
    def __getitem__(self, row: slice) -> Prediction: ...
    def __getitem__(self, row: int | slice) -> ImagePrediction | Prediction:
        """That of one image, as plain numbers; or of several."""
        if isinstance(row, slice):
            return self.take(range(len(self))[row])
        if not -len(self) <= row < len(self):
            raise IndexError(f"This prediction is of {len(self):,} images; there is no row {row}.")

        def of(values: NDArray[Any] | None) -> Any:
            return None if values is None else values[row].item()

        return ImagePrediction(
            label=of(self.label),
            class_name=str(self.class_names[row]),
            confidence=of(self.confidence),
            score=of(self.score),
            p_value=of(self.p_value),
            probability=of(self.probability),
            is_ood=of(self.is_ood),
            cues={name: of(values) for name, values in self.cues.items()},
            cue_p_values={name: of(values) for name, values in self.cue_p_values.items()},
            path=of(self.paths),
            accepted=of(self.accepted),
            new_class=of(self.new_class),
        )

    @property
    def class_names(self) -> NDArray[Any]:
        """``(N,)``: the name of each predicted class."""
        return np.array([*self.classes, ""], dtype=object)[self.label]

    def __repr__(self) -> str:
        """How many are flagged, and the first few in a line each."""
        images = "1 image" if len(self) == 1 else f"{len(self):,} images"
        lines = [f"{images}, {int(self.is_ood.sum()):,} flagged"]
        shown = [self[row] for row in range(min(len(self), _PRINTED))]
        names = [drawable(one.path or str(row)) for row, one in enumerate(shown)]
        classes = [drawable(one.class_name) for one in shown]
        widths = [max(map(len, column), default=0) for column in (names, ["class", *classes])]
        if shown:
            lines.append(f"{'':{widths[0]}}  {'class':{widths[1]}}  confidence  p-value")
        lines += [
            f"{name:{widths[0]}}  {label:{widths[1]}}  {one.confidence:10.3f}  "
            f"{one.p_value:7.2g}{'  OOD' * one.is_ood}"
            for name, label, one in zip(names, classes, shown, strict=True)
        ]
        left = len(self) - len(shown)
        return "\n".join(lines + [f"... and {left:,} more"] * bool(left))

    def take(self, rows: Sequence[int]) -> Prediction:
        """The prediction for these images, in this order."""
        wanted = row_numbers(rows)
        return _combined([self], lambda arrays: arrays[0][wanted])

    def to_pandas(self) -> pandas.DataFrame:
        """A row per image, with the columns of ``goen score``: class name, score, p-values, cues.

        Of a prediction of files, their paths come first.

        Raises:
            ExtraMissing: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ExtraMissing("A table needs pandas: pip install pandas.") from error
        paths = {} if self.paths is None else {"path": self.paths}
        return pandas.DataFrame(paths | self.columns())

    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays by the columns of ``goen score``: class name, score, p-values, cues."""
        probability = [] if self.probability is None else [self.probability]
        accepted = [] if self.accepted is None else [self.accepted]
        new_class = [] if self.new_class is None else [self.new_class]
        arrays = [
            self.class_names,
            self.confidence,
            self.score,
            self.p_value,
            *probability,
            self.is_ood,
            *accepted,
            *new_class,
            *self.cues.values(),
            *self.cue_p_values.values(),
            *self.properties.values(),
        ]
        names = row_columns(
            [*self.cues],
            [*self.cue_p_values],
            [*self.properties],
            probability=bool(probability),
            accepted=bool(accepted),
            new_class=bool(new_class),
        )
        return dict(zip(names, arrays, strict=True))

    def rows(self) -> Iterator[ScoreRow]:
        """A row for each image: the values of ``columns``, and ``error``.

        A number that is not finite is ``None``, since JSON has no infinity. ``error`` is ``None``,
        or for an image whose network outputs were not finite the reason why it is flagged.
        """
        columns = self.columns()
        values = zip(*(_plain(column) for column in columns.values()), strict=True)
        for row in (dict(zip(columns, one, strict=True)) for one in values):
            yield row | {"error": NOT_FINITE if row["score"] is None else None}

    def show(
        self,
        images: Shown | Paths | None = None,
        *,
        rows: Sequence[int] | None = None,
        most: int = 20,
    ) -> PredictionTable:
        """A table for notebooks, the most suspicious first, with thumbnails if images are given.

        Args:
            images: those that were predicted: an ``ImageSet``, an array ``(N, C, H, W)``, a list of
                pictures of Pillow, or the folder or files. A prediction keeps no images, so that it
                stays small.
            rows: which of them, in this order; the most suspicious if not given.
            most: rows of the table.

        Raises:
            UsageError: another number of images.
        """
        shown: Any = images
        if are_paths(images):
            files = list_files(images)
            shown = open_labelled(str(images), AS_THEY_ARE)[0] if files is None else files
        if shown is not None and len(shown) != len(self):
            raise UsageError(
                f"This prediction is of {len(self):,} images, and {len(shown):,} are given."
            )
        chosen = most_suspicious(self)[:most] if rows is None else list(rows)
        return PredictionTable(self, chosen, shown)

    def _repr_html_(self) -> str:
        return self.show(rows=range(min(len(self), MOST_ROWS)))._repr_html_()

    def explain(self, row: int = 0) -> Explanation:
        """What each cue of image ``row`` contributes to its decision.

        Raises:
            UsageError: there is no such image.
        """
        check_number("row", row, whole=True, at_least=-len(self), below=len(self))
        p_values = self.cue_p_values
        cues = tuple(
            ExplainedCue(name, float(values[row]), float(p_values[name][row]) if p_values else None)
            for name, values in self.cues.items()
        )
        return Explanation(
            self.classes[self.label[row]], float(self.p_value[row]), bool(self.is_ood[row]), cues
        )

    def flag_with_fdr(self, q: float) -> NDArray[np.bool_]:
        """Which of these images to flag so that at most a share ``q`` of the flags is false.

        Benjamini and Hochberg's procedure on the p-values of this batch; the bound holds on
        average. The false-alarm rate bounds the share of ID images that are flagged; this bounds
        the share of flagged images that are ID. Images must be independent of each other.

        With few held-out images no p-value is small enough for a few images of a large batch to be
        found; a ``GoenWarning`` gives the numbers then.

        Raises:
            UsageError: ``q`` is not between 0 and 1, the held-out images come in groups, or the
                p-values are weighted.
        """
        from scipy.stats import false_discovery_control  # slow to import

        check_number("q", q, above=0, below=1)
        if self.grouped:
            raise UsageError(
                "The held-out images of this gate come in groups, and false-discovery control is "
                "valid for p-values of images that were drawn independently: use is_ood."
            )
        if self.weighted:
            raise UsageError(
                "These p-values are weighted for a declared shift, and share their weights: "
                "false-discovery control is not valid for them. Use is_ood."
            )
        # Conformal p-values are fractions, so both sides are often equal but for rounding;
        # fractions that differ, differ by far more than this tolerance.
        tolerance = 1 + 8 * np.finfo(np.float64).eps
        found: NDArray[np.bool_] = false_discovery_control(self.p_value) <= float(q) * tolerance
        power = math.inf if self.num_held_out is None else q * (self.num_held_out + 1)
        if len(self) > power and not found.any():
            needed = math.ceil(len(self) / power)
            enough = math.ceil(len(self) / q) - 1
            warn(
                f"With {self.num_held_out} held-out images and a batch of {len(self)}, a "
                f"false-discovery rate of {q:g} finds nothing unless at least {needed} images have "
                f"the least possible p-value. {enough} held-out images would let it find a single "
                "one."
            )
        return found


def concatenate(parts: list[Prediction]) -> Prediction:
    """The predictions of several batches as one.

    Raises:
        DataError: there are no batches.
    """
    if not parts:
        raise DataError("Cannot concatenate: there are no batches.")

    return _combined(parts, np.concatenate)


def _combined(
    parts: Sequence[Prediction], combine: Callable[[list[NDArray[Any]]], NDArray[Any]]
) -> Prediction:
    """The first prediction with each of its arrays made from those of all."""

    def made(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Mapping):
            return {cue: combine([arrays[cue] for arrays in values]) for cue in values[0]}
        return None if values[0] is None else combine(values)

    return replace(parts[0], **{name: made(name) for name in _ARRAYS})


def row_columns(
    cues: Sequence[str],
    explained: Sequence[str],
    properties: Sequence[str] = (),
    *,
    probability: bool,
    accepted: bool = False,
    new_class: bool = False,
) -> list[str]:
    """The columns of a row, but for ``error``.

    Args:
        cues: their names.
        explained: those with p-values.
        properties: of the images.
        probability: whether there is one.
        accepted: whether the gate has an error rate.
        new_class: whether classes were added to the gate that its classifier does not know.

    Example:
        >>> row_columns(["a"], ["a"], probability=False)
        ['label', 'confidence', 'score', 'p_value', 'is_ood', 'cue_a', 'p_a']
    """
    return [
        *("label", "confidence", "score", "p_value"),
        *(["probability"] if probability else []),
        "is_ood",
        *(["accepted"] if accepted else []),
        *(["new_class"] if new_class else []),
        *(f"cue_{name}" for name in cues),
        *map(p_value_column, explained),
        *map(property_column, properties),
    ]


def p_value_column(cue: str) -> str:
    """The column of a cue's p-value: ``p_`` and its name.

    ``p_value`` is that of the score, so a layer called ``value`` is written with a ``_`` after it,
    and one called ``value_`` with two.
    """
    return f"p_{cue}" + "_" * (cue.rstrip("_") == "value")


def property_column(name: str) -> str:
    """The column of a property of the images: ``image_`` and its name."""
    return f"image_{name}"


def cue_of(column: str) -> str:
    """The cue of a column of ``p_value_column``."""
    name = column.removeprefix("p_")
    return name[: len(name) - (name.rstrip("_") == "value")]


def _plain(column: NDArray[Any]) -> list[Any]:
    """The values as Python has them; None for what is not finite."""
    values: list[Any] = column.tolist()
    if column.dtype.kind != "f" or np.isfinite(column).all():
        return values
    return [value if math.isfinite(value) else None for value in values]


class PredictionTable:
    """Some images of a prediction, as HTML for notebooks.

    Args:
        prediction: of N images.
        rows: those to show.
        images: the N images, if thumbnails are wanted.
    """

    def __init__(
        self, prediction: Prediction, rows: Sequence[int], images: Shown | None = None
    ) -> None:
        self.prediction = prediction
        self.rows = rows
        self._thumbnails = [] if images is None else [_thumbnail(images, row) for row in rows]

    def _repr_html_(self) -> str:
        found = self.prediction.take(self.rows)
        least = None if found.num_held_out is None else 1 / (found.num_held_out + 1)

        def bars(p_values: Floats) -> list[Cell]:
            return [p_value_bar(float(p), least) for p in p_values]

        columns: list[tuple[str, Sequence[Cell]]] = [("", [str(row) for row in self.rows])]
        if self._thumbnails:
            columns.append(("image", [picture(url) for url in self._thumbnails]))
        decided = zip(found.p_value, found.is_ood, strict=True)
        columns += [
            ("class", [found.classes[label] for label in found.label]),
            ("confidence", [f"{value:.3f}" for value in found.confidence]),
            ("p-value", [p_value_bar(float(p), least, flagged=bool(ood)) for p, ood in decided]),
        ]
        if found.probability is not None:
            columns.append(("P(OOD)", [f"{value:.3f}" for value in found.probability]))
        columns.append(("decision", [flag(bool(is_ood)) for is_ood in found.is_ood]))
        explained = [(f"p of {name}", bars(p)) for name, p in found.cue_p_values.items()]
        values = [(name, [f"{v:.3g}" for v in cue]) for name, cue in found.cues.items()]
        columns += explained or values
        names, cells = zip(*columns, strict=True)
        total, flagged = len(self.prediction), int(self.prediction.is_ood.sum())
        meaning = "A longer bar is more unusual." if self.rows else ""
        return html_table(
            f"{total:,} images, {flagged:,} flagged",
            names,
            zip(*cells, strict=True),
            note=f"{cut(len(self.rows), total, 'images')} {meaning}".strip(),
            right=("", "confidence", "P(OOD)"),
        )


def most_suspicious(prediction: Prediction) -> list[int]:
    """The images by p-value, the lowest first, then by score, the highest first."""
    order: list[int] = np.lexsort((-prediction.score, prediction.p_value)).tolist()
    return order


def _thumbnail(images: Shown, row: int) -> str:
    """One image as a data URL."""
    if isinstance(images, ImageSet):
        return image_url(images.read([row])[0], _THUMBNAIL)
    one: Any = images[row]
    if isinstance(one, Path):
        return image_url(read_thumbnail(one, _THUMBNAIL), _THUMBNAIL)
    if isinstance(one, Image.Image):
        return image_url(read_image(one, name=f"image {row}"), _THUMBNAIL)
    return image_url(_pixels(np.asarray(one)), _THUMBNAIL)


def _pixels(image: NDArray[Any]) -> Pixels:
    """An image ``(C, H, W)`` of whole numbers or floats in [0, 1]."""
    if image.ndim != 3:
        raise UsageError(f"Images have shape (N, C, H, W); got one of {image.shape}.")
    if image.dtype in (np.uint8, np.uint16):
        return image
    if image.dtype.kind != "f":
        raise UsageError(f"Images are uint8, uint16, or floats in [0, 1]; got {image.dtype}.")
    return to_depth(np.nan_to_num(image.astype(np.float64)).clip(0, 1), 8)
