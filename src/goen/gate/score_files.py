"""Score image files and folders with a gate, one row per file, in constant memory."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from goen.data.imageset import Pixels
from goen.data.pictures import find_pictures, read_picture
from goen.errors import DataError, UsageError
from goen.files import Own, whole_file
from goen.gate import Gate, Prediction
from goen.progress import bar
from goen.runs.recognise import first_row

ScoreRow = dict[str, str | float | bool | None]
_BATCH_SIZE = 128
_NOT_FINITE = "the network's outputs are NaN or infinite; flagged"
_LONGEST_HEADER = 1 << 16
OUTPUT_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class FileCounts:
    """How many files were scored, flagged, and could not be read."""

    scored: int
    flagged: int
    unreadable: int


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files given, and all pictures in the folders given, sorted within each folder.

    A file that does not exist stays in the list: its row holds the error.
    """
    found: list[Path] = []
    for path in paths:
        found += find_pictures(path) if path.is_dir() else [path]
    return found


def score_files(gate: Gate, files: Sequence[Path], write: Callable[[ScoreRow], None]) -> FileCounts:
    """Score every file and pass its row to ``write``, in the order of the files.

    A file that cannot be read gets a row with its error. An image for which the network's outputs
    are not finite is flagged, and its row says so.
    """
    scored = flagged = 0
    with ThreadPoolExecutor() as pool, bar() as progress:
        task = progress.add_task("scoring", total=len(files), status="images")
        for start in range(0, len(files), _BATCH_SIZE):
            batch = files[start : start + _BATCH_SIZE]
            read = list(pool.map(lambda file: _read(file, gate.image_size), batch))
            images = [image for image in read if not isinstance(image, str)]
            rows = iter(_rows(gate.predict(np.stack(images)))) if images else iter(())
            for file, image in zip(batch, read, strict=True):
                error = image if isinstance(image, str) else None
                row = dict.fromkeys(score_columns(gate)) if error else next(rows)
                scored += error is None
                if error is None and row["score"] is None:
                    error = _NOT_FINITE
                flagged += bool(row["is_ood"])
                write({"path": _printable(file), **row, "error": error})
            progress.advance(task, len(batch))
    return FileCounts(scored, flagged, len(files) - scored)


def _printable(file: Path) -> str:
    """The path as text, whatever bytes its name is made of."""
    return os.fsencode(file).decode("utf-8", "backslashreplace")


def score_columns(gate: Gate) -> list[str]:
    """The columns of a row between ``path`` and ``error``."""
    probability = ["probability"] if gate.detector.has_probability else []
    cues = [f"cue_{name}" for name in gate.detector.cue_names]
    p_values = [f"p_{name}" for name in gate.detector.cue_names if gate.detector.has_cue_p_values]
    return ["label", "confidence", "score", "p_value", *probability, "is_ood", *cues, *p_values]


def _read(file: Path, size: tuple[int, int]) -> Pixels | str:
    try:
        return read_picture(file, size)
    except DataError as error:
        return os.fsencode(str(error)).decode("utf-8", "backslashreplace")


def _rows(prediction: Prediction) -> Iterator[ScoreRow]:
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
        yield row | {f"p_{name}": float(p[i]) for name, p in prediction.cue_p_values.items()}


def _cell(value: str | float | bool | None) -> str | float | bool | None:
    """A cell of a CSV file: a text that a spreadsheet would take for a formula gets a ``'`` first.

    So does one that begins with ``'``: whoever reads the file takes one away.
    """
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "'"))
    return f"'{value}" if formula else value


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return float(value) if np.isfinite(value) else None


def _are_columns(names: Sequence[str]) -> bool:
    """Whether these are the columns of a file of scores, by whichever gate: no more, no fewer."""
    fixed = [name for name in names if not name.startswith(("cue_", "p_")) or name == "p_value"]
    fixed = [name for name in fixed if name != "probability"]
    return fixed == ["path", "label", "confidence", "score", "p_value", "is_ood", "error"]


def _is_csv(path: Path) -> bool:
    with path.open(newline="", encoding="utf-8") as file:
        return _are_columns(next(csv.reader([file.readline(_LONGEST_HEADER)])))


def _is_parquet(path: Path) -> bool:
    import pyarrow.parquet as pq

    return _are_columns(pq.read_schema(path).names)


_CSV = Own("a CSV file of scores that goen wrote", _is_csv)
_JSONL = Own("JSON lines of scores that goen wrote", lambda p: _are_columns([*first_row(p)]))
_PARQUET = Own("a Parquet file of scores that goen wrote", _is_parquet)


def check_not_scored(out: Path, files: Sequence[Path]) -> None:
    """Raise a UsageError if the file to write is one of the files to score."""
    if out.exists() and any(file.exists() and file.samefile(out) for file in files):
        raise UsageError(f"{out} is one of the files to score. Choose another path for --out.")


def open_writer(
    out: Path | None, stdout: TextIO, names: Sequence[str]
) -> AbstractContextManager[Callable[[ScoreRow], None]]:
    """A writer of rows: JSON lines to ``stdout``, or a file in the format of its suffix.

    Args:
        out: a ``.jsonl``, ``.csv`` or ``.parquet`` file, which appears when it is complete;
            ``None`` for stdout.
        stdout: the stream for ``None``.
        names: all columns, in order.

    Raises:
        UsageError: an unknown suffix, Parquet without pyarrow, or something at ``out`` that is not
            an earlier file of scores.
    """
    if out is None:
        return nullcontext(lambda row: _write_json(row, stdout))
    form = OUTPUT_FORMATS.get(out.suffix.lower())
    if form is None:
        raise UsageError(
            f"{out} should end in {', '.join(OUTPUT_FORMATS)}: the suffix selects the format."
        )
    return _parquet(out, names) if form == "parquet" else _text(out, form, names)


def _write_json(row: ScoreRow, file: TextIO) -> None:
    text = json.dumps(row, ensure_ascii=False)
    # JSON escapes the control characters below 32; a terminal also obeys these.
    file.write(re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


@contextmanager
def _text(out: Path, form: str, names: Sequence[str]) -> Iterator[Callable[[ScoreRow], None]]:
    ours = _JSONL if form == "jsonl" else _CSV
    with (
        whole_file(out, ours) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        if form == "jsonl":
            yield lambda row: _write_json(row, file)
        else:
            table = csv.DictWriter(file, names)
            table.writeheader()
            yield lambda row: table.writerow({k: _cell(v) for k, v in row.items()})
        file.flush()


@contextmanager
def _parquet(out: Path, names: Sequence[str]) -> Iterator[Callable[[ScoreRow], None]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: pip install 'goen[parquet]'.") from error
    text = {"path", "label", "error"}
    kinds = {name: pa.string() if name in text else pa.float64() for name in names}
    schema = pa.schema(list({**kinds, "is_ood": pa.bool_()}.items()))
    held: list[ScoreRow] = []
    with whole_file(out, _PARQUET) as temporary, pq.ParquetWriter(temporary, schema) as file:

        def write(row: ScoreRow) -> None:
            held.append(row)
            if len(held) >= 10_000:
                flush()

        def flush() -> None:
            file.write_table(pa.Table.from_pylist(held, schema))
            held.clear()

        yield write
        flush()
