"""Predictions as tables for notebooks."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from goen.data.data_urls import picture_url
from goen.data.forms import Pixels, to_depth
from goen.data.imageset import ImageSet
from goen.data.pictures import read_picture
from goen.errors import UsageError
from goen.gate.prediction import Prediction
from goen.notebook import Cell, cut, flag, html_table, p_value_bar, picture

Shown: TypeAlias = ImageSet | Tensor | NDArray[Any] | Sequence[Image.Image]

_THUMBNAIL = 96


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
        self._pictures = [] if images is None else [_thumbnail(images, row) for row in rows]

    def _repr_html_(self) -> str:
        found = self.prediction
        columns = ["", *(["image"] if self._pictures else []), "class", "confidence", "p-value"]
        columns += ["P(OOD)"] if found.probability is not None else []
        columns += ["decision", *self._cue_columns()]
        flagged = int(found.is_ood.sum())
        note = cut(len(self.rows), len(found), "images")
        bars = "A longer bar is more unusual." if self.rows else ""
        return html_table(
            f"{len(found):,} images, {flagged:,} flagged",
            columns,
            [self._cells(place, row) for place, row in enumerate(self.rows)],
            note=f"{note} {bars}".strip(),
            right=("", "confidence", "P(OOD)"),
        )

    def _cue_columns(self) -> list[str]:
        p_values = self.prediction.cue_p_values
        return [f"p of {name}" for name in p_values] or [*self.prediction.cues]

    def _cells(self, place: int, row: int) -> list[Cell]:
        found = self.prediction
        least = None if found.num_held_out is None else 1 / (found.num_held_out + 1)
        flagged = bool(found.is_ood[row])
        cells: list[Cell] = [str(row)]
        cells += [picture(self._pictures[place])] if self._pictures else []
        cells += [found.classes[found.label[row]], f"{found.confidence[row]:.3f}"]
        cells += [p_value_bar(float(found.p_value[row]), least, flagged=flagged)]
        if found.probability is not None:
            cells.append(f"{found.probability[row]:.3f}")
        cells.append(flag(flagged))
        bars: list[Cell] = [p_value_bar(float(p[row]), least) for p in found.cue_p_values.values()]
        return [*cells, *(bars or [f"{cue[row]:.3g}" for cue in found.cues.values()])]


def most_suspicious(prediction: Prediction) -> list[int]:
    """The images by p-value, the lowest first, then by score, the highest first."""
    order: list[int] = np.lexsort((-prediction.score, prediction.p_value)).tolist()
    return order


def _thumbnail(images: Shown, row: int) -> str:
    """One image as a data URL."""
    if isinstance(images, ImageSet):
        return picture_url(images.read([row])[0], _THUMBNAIL)
    one: Any = images[row]
    if isinstance(one, Image.Image):
        return picture_url(read_picture(one, name=f"picture {row}"), _THUMBNAIL)
    return picture_url(_pixels(np.asarray(one)), _THUMBNAIL)


def _pixels(image: NDArray[Any]) -> Pixels:
    """An image ``(C, H, W)`` of whole numbers or floats in [0, 1]."""
    if image.ndim != 3:
        raise UsageError(f"Images have shape (N, C, H, W); got one of {image.shape}.")
    if image.dtype in (np.uint8, np.uint16):
        return image
    if image.dtype.kind != "f":
        raise UsageError(f"Images are uint8, uint16, or floats in [0, 1]; got {image.dtype}.")
    return to_depth(np.nan_to_num(image.astype(np.float64)).clip(0, 1), 8)
