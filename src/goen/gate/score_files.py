"""Score image files and folders with a gate, one row per file, in constant memory.

``goen.gate.score_writers`` writes the rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from goen.data.find_pictures import find_pictures
from goen.data.forms import COLOUR, PixelForm, Pixels
from goen.data.inputs import check_batch_size
from goen.data.pictures import read_picture
from goen.errors import DataError, GoenError, UsageError
from goen.files import is_folder, printable, printable_path
from goen.gate import Gate, Prediction
from goen.outputs import Outputs
from goen.progress import bar

ScoreRow = dict[str, str | float | bool | None]
DEFAULT_BATCH_SIZE = 128
_TEXT = ("path", "label", "error")
NOT_FINITE = "the network's outputs are NaN or infinite; flagged"
"""The error in the row of such an image."""


@dataclass(frozen=True)
class FoundFiles:
    """The files to score, and what else lies in their folders.

    Attributes:
        files: in the order in which they are scored.
        skipped: how many files of the folders are not among them, by the ending of their names.
    """

    files: list[Path]
    skipped: Counter[str]


@dataclass(frozen=True)
class ScoredFile:
    """One file and its row: ``path``, the columns of ``score_columns``, and ``error``."""

    file: Path
    row: ScoreRow


@dataclass(frozen=True)
class FileCounts:
    """How many files were scored, flagged, and could not be read."""

    scored: int
    flagged: int
    unreadable: int


@dataclass(frozen=True)
class ScoredBatch:
    """Files that were read and scored together, for whoever wants more than their rows.

    Attributes:
        files: N of them.
        images: what the network saw of them, ``(N, C, H, W)``.
        outputs: of the network.
        prediction: of the gate.
    """

    files: Sequence[Path]
    images: Pixels
    outputs: Outputs
    prediction: Prediction


def find_files(paths: Sequence[Path], form: PixelForm = COLOUR) -> FoundFiles:
    """The files given, and all pictures in the folders given, sorted within each folder.

    NPY and NPZ files in folders are taken for a gate whose images are not colour of 8 bits, and if
    there are no pictures.

    A file that is given stays, also if it does not exist: its row holds the error. A picture in a
    folder is found once, also if it is given itself or if its folder is given twice.
    """
    found = _found(paths, arrays=form != COLOUR)
    if not found.files and paths and form == COLOUR:
        found = _found(paths, arrays=True)
    return found


def _found(paths: Sequence[Path], *, arrays: bool) -> FoundFiles:
    skipped = Counter[str]()
    passed = {str(path.absolute()) for path in paths if not is_folder(path)}
    found: list[Path] = []
    for path in paths:
        inside = find_pictures(path, skipped, passed, arrays=arrays) if is_folder(path) else [path]
        found += inside
    return FoundFiles(found, skipped)


def score_files(
    gate: Gate,
    files: Sequence[Path],
    write: Callable[[ScoredFile], None],
    watch: Callable[[ScoredBatch], None] | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> FileCounts:
    """Score every file and pass its row to ``write``, in the order of the files.

    A file that cannot be read gets a row with its error. An image for which the network's outputs
    are not finite is flagged, and its row says so.

    Args:
        gate: scores.
        files: to score.
        write: takes the row of each file.
        watch: takes each batch of files that were read, before their rows are written.
    """
    check_batch_size(batch_size)
    scored = flagged = 0
    with ThreadPoolExecutor() as pool, bar() as progress:
        task = progress.add_task("scoring", total=len(files), status="images")
        for start in range(0, len(files), batch_size):
            batch = files[start : start + batch_size]
            for one in score_batch(gate, batch, pool, watch):
                scored += one.row["label"] is not None
                flagged += bool(one.row["is_ood"])
                write(one)
            progress.advance(task, len(batch))
    return FileCounts(scored, flagged, len(files) - scored)


def score_batch(
    gate: Gate,
    files: Sequence[Path],
    pool: Executor,
    watch: Callable[[ScoredBatch], None] | None = None,
) -> Iterator[ScoredFile]:
    """The row of each of a few files, in their order; see ``score_files``.

    Args:
        gate: scores them together.
        files: as many as fit into memory.
        pool: decodes them.
        watch: takes the files that were read, before their rows are given.
    """
    size, form = gate.image_size, gate.picture_form

    def read_one(file: Path) -> Pixels | str:
        return pixels_or_error(lambda: read_picture(file, size, form=form))

    read = list(pool.map(read_one, files))
    found = [i for i, image in enumerate(read) if not isinstance(image, str)]
    prediction = None
    if found:
        together = score_images(gate, [files[i] for i in found], _stack(read))
        prediction = together.prediction
        if watch is not None:
            watch(together)
    for file, row in zip(files, _rows(gate, read, prediction), strict=True):
        yield ScoredFile(file, {"path": printable_path(file), **row})


def score_images(gate: Gate, files: Sequence[Path], images: Pixels) -> ScoredBatch:
    """Images that were read from these files, scored together."""
    outputs = gate.outputs(images)
    return ScoredBatch(files, images, outputs, gate.predict_outputs(outputs))


def image_rows(gate: Gate, read: Sequence[Pixels | str]) -> Iterator[ScoreRow]:
    """The row of each image or error of ``pixels_or_error``, without its path; see ``score_batch``.

    Args:
        gate: scores them together.
        read: images ``(C, H, W)`` of the gate's size, or why a picture could not be read.
    """
    any_read = any(not isinstance(image, str) for image in read)
    return _rows(gate, read, gate.predict(_stack(read)) if any_read else None)


def unreadable(gate: Gate, file: Path, error: GoenError) -> ScoredFile:
    """The row of a file of which nothing, or nothing more, can be read."""
    row = dict.fromkeys(score_columns(gate))
    text = printable(str(error))
    return ScoredFile(file, {"path": printable_path(file), **row, "error": text})


def pixels_or_error(read: Callable[[], Pixels]) -> Pixels | str:
    """What ``read`` returns, or its ``DataError`` as the text of a row."""
    try:
        return read()
    except DataError as error:
        return printable(str(error))


def _stack(read: Sequence[Pixels | str]) -> Pixels:
    return np.stack([image for image in read if not isinstance(image, str)])


def _rows(
    gate: Gate, read: Sequence[Pixels | str], prediction: Prediction | None
) -> Iterator[ScoreRow]:
    """A row for each picture, in order; the prediction is that of the pictures that were read."""
    rows = iter(()) if prediction is None else prediction_rows(prediction)
    for image in read:
        if isinstance(image, str):
            yield {**dict.fromkeys(score_columns(gate)), "error": image}
        else:
            yield next(rows)


def score_columns(gate: Gate) -> list[str]:
    """The columns of a row between ``path`` and ``error``."""
    probability = ["probability"] if gate.detector.has_probability else []
    cues = [f"cue_{name}" for name in gate.detector.cue_names]
    explained = gate.detector.cue_names if gate.detector.has_cue_p_values else ()
    p_values = [p_value_column(name) for name in explained]
    return ["label", "confidence", "score", "p_value", *probability, "is_ood", *cues, *p_values]


def prediction_rows(prediction: Prediction) -> Iterator[ScoreRow]:
    """A row for each image, with the columns of ``score_columns`` and ``error``."""
    for i in range(len(prediction)):
        row: ScoreRow = {
            "label": prediction.classes[prediction.label[i]],
            "confidence": float(prediction.confidence[i]),
            "score": _finite(prediction.score[i]),
            "p_value": float(prediction.p_value[i]),
        }
        if prediction.probability is not None:
            row["probability"] = float(prediction.probability[i])
        row["is_ood"] = bool(prediction.is_ood[i])
        row |= {f"cue_{name}": _finite(values[i]) for name, values in prediction.cues.items()}
        p_values = prediction.cue_p_values
        row |= {p_value_column(name): float(p[i]) for name, p in p_values.items()}
        yield row | {"error": NOT_FINITE if row["score"] is None else None}


def p_value_column(cue: str) -> str:
    """The column of a cue's p-value: ``p_`` and its name.

    ``p_value`` is that of the score, so a layer called ``value`` is written with a ``_`` after it,
    and one called ``value_`` with two.
    """
    return f"p_{cue}" + "_" * _is_like_value(cue)


def _cue_of(column: str) -> str:
    """The cue of a column of ``p_value_column``."""
    name = column.removeprefix("p_")
    return name[: len(name) - _is_like_value(name)]


def _is_like_value(name: str) -> bool:
    return name.rstrip("_") == "value"


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return float(value) if np.isfinite(value) else None


def most_unusual_cue(row: ScoreRow) -> str:
    """The cue or cues with the smallest p-value; all cues if they have no p-values.

    Example:
        >>> most_unusual_cue({"p_value": 0.1, "p_layer2": 0.3, "p_layer4": 0.002})
        'layer4: p = 0.002'
    """
    p_values = {_cue_of(column): p for column, p in _numbers(row, "p_").items()}
    if not p_values:
        cues = _numbers(row, "cue_").items()
        return ", ".join(f"{name.removeprefix('cue_')}: {value:.2g}" for name, value in cues)
    least = min(p_values.values())
    names = ", ".join(name for name, p in p_values.items() if p == least)
    return f"{names}: p = {least:.2g}"


def _numbers(row: ScoreRow, prefix: str) -> dict[str, float]:
    """The columns of the cues that begin so."""
    return {
        name: float(value)
        for name, value in row.items()
        if name.startswith(prefix) and name != "p_value" and isinstance(value, float)
    }


def sort_rows(rows: Iterable[ScoreRow], column: str) -> list[ScoreRow]:
    """The rows by this column: the most suspicious first, text in alphabetical order.

    High scores, probabilities and cues are suspicious, and low p-values and confidences. Equal rows
    are sorted by their scores. Files that could not be read come last.
    """
    low_first = column == "confidence" or column.startswith("p_")

    def key(row: ScoreRow) -> tuple[bool, str, float, float]:
        if row["is_ood"] is None:
            return True, "", 0.0, 0.0
        if column in _TEXT:
            return False, str(row[column]), 0.0, -_suspicion(row["score"])
        number = _suspicion(row[column])
        return False, "", number if low_first else -number, -_suspicion(row["score"])

    return sorted(rows, key=key)


def _suspicion(value: str | float | bool | None) -> float:
    """The number; None is what JSON has for an infinite score, the most suspicious there is."""
    return np.inf if value is None else float(value)


def check_not_scored(out: Path, files: Sequence[Path]) -> None:
    """Raise a UsageError if the file to write is one of the files to score."""
    if out.exists() and any(_is_same(file, out) for file in files):
        raise UsageError(f"{out} is one of the files to score. Choose another path for --out.")


def _is_same(file: Path, out: Path) -> bool:
    try:
        return file.samefile(out)
    except OSError:  # it does not exist, or cannot: its name is too long
        return False
