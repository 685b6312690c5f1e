"""A gate as a function of a batch of columns, which engines of many processes call.

Ray Data, Daft, Dask, Spark's ``mapInPandas`` and Hugging Face ``datasets`` all map a function over
batches of a table. ``Scorer`` is that function; it pickles, and loads the gate where it arrives.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from goen.data.images.decoding import read_image
from goen.data.images.pixel_format import Pixels
from goen.data.input_spec import ImageInputs
from goen.data.inputs import Arrays
from goen.errors import DataError, UsageError, unknown
from goen.gate import load
from goen.gate.gate import Gate
from goen.gate.prediction import ScoreRow
from goen.io.files import printable
from goen.scoring.rows import rows_of_read, score_columns

Column = NDArray[Any]
_IMAGE = (bytes, Mapping, Image.Image)


class Scorer:
    """Scores batches of columns: ``{"image": ..., "id": ...}`` in, the same with scores out.

    The column of images is left out of the result and all others stay; added are those of ``goen
    score``: label, confidence, score, p_value, probability if the gate has one, is_ood, each cue
    with its p-value, and error. They have the same types in every batch. An image that cannot be
    read has its reason in ``error``, an empty label, NaN for numbers, and is flagged; of all others
    ``error`` is empty, unless the network's outputs were not finite.

    It pickles as its gate does: as checked bytes, with the user's own model if there is one.

    Args:
        gate: a gate, or what ``goen.load`` takes for one.
        column: that holds the images: contents of image files (bytes, or structs with ``bytes``,
            as Hugging Face has them), images of Pillow, or arrays as ``Gate.predict`` takes them.
            A gate of several tensors or of features takes the columns of their names instead.

    Example:
        >>> scorer = Scorer("cifar10")
        >>> batch = {"id": np.array([7]), "image": np.zeros((1, 3, 32, 32), np.uint8)}
        >>> scored = scorer(batch)
        >>> scored["id"].tolist(), scored["is_ood"].dtype, scored["error"].tolist()
        ([7], dtype('bool'), [''])
    """

    def __init__(self, gate: Gate | Path | str, column: str = "image") -> None:
        self.gate = gate if isinstance(gate, Gate) else load(gate)
        self.column = column

    def __call__(self, batch: Mapping[str, Column | Sequence[object]]) -> dict[str, Column]:
        """The batch without its images and with their scores.

        Raises:
            UsageError: a column is missing, or holds what is no image.
        """
        columns = {name: _column(values) for name, values in batch.items()}
        inputs = self._input_columns()
        for name in inputs:
            if name not in columns:
                raise unknown("column", name, columns)
        rows = self._rows({name: columns.pop(name) for name in inputs})
        return {**columns, **_as_columns(rows, score_columns(self.gate))}

    def _input_columns(self) -> list[str]:
        inputs = self.gate.inputs
        if isinstance(inputs, ImageInputs) or inputs.form == "tensor":
            return [self.column]
        return [*inputs.parts]

    def _rows(self, given: dict[str, Column]) -> list[ScoreRow]:
        inputs = self.gate.inputs
        if not isinstance(inputs, ImageInputs):
            parts = {name: _one_array(values, name) for name, values in given.items()}
            batch: Arrays = parts if inputs.form == "dict" else tuple(parts.values())
            return self._predicted(parts[self.column] if inputs.form == "tensor" else batch)
        values = given[self.column]
        if values.dtype != object or (len(values) and isinstance(values[0], np.ndarray)):
            return self._predicted(_one_array(values, self.column))
        read = [self._read(f"image {number} of the batch", v) for number, v in enumerate(values)]
        images = [one for one in read if not isinstance(one, str)]
        prediction = self.gate.predict(np.stack(images)) if images else None
        return list(rows_of_read(self.gate, read, prediction))

    def _predicted(self, batch: Arrays) -> list[ScoreRow]:
        return list(self.gate.predict(batch).rows())

    def _read(self, name: str, value: object) -> Pixels | str:
        """The image, or why it cannot be read."""
        content = value.get("bytes") if isinstance(value, Mapping) else value
        if not isinstance(content, (bytes, Image.Image)):
            return f"{name} is no content of an image file: {type(content).__name__}."
        try:
            return read_image(content, self.gate.image_size, name, self.gate.pixel_format)
        except DataError as error:
            return printable(str(error))


def _column(values: Column | Sequence[object]) -> Column:
    """The values as an array, of objects where they are no plain numbers or texts.

    NumPy by itself would cut zeros off the end of bytes, takes no lists of different lengths, and
    takes an empty list for numbers.
    """
    if not isinstance(values, (list, tuple)):
        return np.asarray(values)
    if values and not any(isinstance(value, _IMAGE) for value in values):
        with suppress(ValueError):
            return np.asarray(values)
    column = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        column[number] = value
    return column


def _one_array(values: Column, name: str) -> Column:
    """The values as one array: engines give arrays of arrays where they do not know the shape."""
    if values.dtype != object:
        return values
    try:
        return np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise UsageError(f"The arrays in {name!r} differ in shape: {error}.") from error


def _as_columns(rows: Sequence[ScoreRow], names: Sequence[str]) -> dict[str, Column]:
    """The rows as arrays whose types do not depend on their values."""
    text = {"label", "error"}
    columns: dict[str, Column] = {}
    for name in [*names, "error"]:
        values = [row[name] for row in rows]
        if name in text:
            columns[name] = np.array([value or "" for value in values], dtype=np.str_)
        elif name in ("is_ood", "accepted", "new_class"):
            # What cannot be read is flagged, not accepted, and of no new class.
            none = name == "is_ood"
            filled = [none if value is None else value for value in values]
            columns[name] = np.array(filled, dtype=np.bool_)
        else:
            columns[name] = np.array(values, dtype=np.float64)  # None becomes NaN
    return columns
