"""Writers of the rows of ``score_files``: JSON lines, CSV and Parquet, to a file or a stream."""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, Literal, TextIO, get_args

from goen.checks import check_choice
from goen.errors import ExtraMissing, UsageError
from goen.escaping import csv_line, json_line
from goen.files import Own, whole_file
from goen.gate.score_files import ScoreRow
from goen.runs.recognise import first_row

RowFormat = Literal["jsonl", "csv", "parquet"]
Write = Callable[[ScoreRow], None]

_BY_SUFFIX: dict[str, RowFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
_LONGEST_HEADER = 1 << 16
_PARQUET_ROWS = 10_000


def format_of(out: Path, asked: RowFormat | None = None) -> RowFormat:
    """The format of the file to write: the one asked for, else that of its suffix.

    Example:
        >>> format_of(Path("scores.csv")), format_of(Path("scores.txt"), "jsonl")
        ('csv', 'jsonl')

    Raises:
        UsageError: an unknown suffix and no format, or a suffix of another format.
    """
    known = _BY_SUFFIX.get(out.suffix.lower())
    if known is None and asked is None:
        raise UsageError(
            f"{out} should end in {', '.join(_BY_SUFFIX)}: the suffix selects the format, unless "
            "one is asked for."
        )
    if known is not None and asked not in (None, known):
        raise UsageError(
            f"{out} would hold {asked}, but its suffix stands for {known}. Choose another name, or "
            "the other format."
        )
    return asked or known or "jsonl"


def open_writer(out: Path, form: RowFormat, names: Sequence[str]) -> AbstractContextManager[Write]:
    """A writer of rows to a file, which appears when it is complete.

    Args:
        out: the file.
        form: its format.
        names: all columns, in order.

    Raises:
        UsageError: an unknown format, Parquet without pyarrow, or something at ``out`` that is not
            an earlier file of scores in this format.
    """
    check_choice("format", form, get_args(RowFormat))
    return _parquet_file(out, names) if form == "parquet" else _text_file(out, form, names)


def stream_writer(
    stream: TextIO, form: RowFormat, names: Sequence[str]
) -> AbstractContextManager[Write]:
    """A writer of rows to a text stream; Parquet goes to the buffer beneath it."""
    check_choice("format", form, get_args(RowFormat))
    if form == "parquet":
        return _parquet(stream.buffer, names)
    return nullcontext(_text(stream, form, names))


def _text(file: TextIO, form: RowFormat, names: Sequence[str]) -> Write:
    ascii_only = "utf" not in (file.encoding or "utf-8").lower()

    def write(row: ScoreRow) -> None:
        if form == "jsonl":
            file.write(json_line(row, ascii_only=ascii_only))
        else:
            file.write(csv_line(row[name] for name in names))

    if form == "csv":
        file.write(csv_line(names))
    return write


@contextmanager
def _text_file(out: Path, form: RowFormat, names: Sequence[str]) -> Iterator[Write]:
    with (
        whole_file(out, _JSONL if form == "jsonl" else _CSV) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        yield _text(file, form, names)
        file.flush()


@contextmanager
def _parquet_file(out: Path, names: Sequence[str]) -> Iterator[Write]:
    with (
        whole_file(out, _PARQUET) as temporary,
        temporary.open("wb") as file,
        _parquet(file, names) as write,
    ):
        yield write


@contextmanager
def _parquet(file: BinaryIO, names: Sequence[str]) -> Iterator[Write]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExtraMissing("Parquet needs pyarrow: pip install 'goen[parquet]'.") from error
    text = {"path", "label", "error"}
    kinds = {name: pa.string() if name in text else pa.float64() for name in names}
    schema = pa.schema(list({**kinds, "is_ood": pa.bool_()}.items()))
    held: list[ScoreRow] = []
    with pq.ParquetWriter(file, schema) as table:

        def write(row: ScoreRow) -> None:
            held.append(row)
            if len(held) >= _PARQUET_ROWS:
                flush()

        def flush() -> None:
            table.write_table(pa.Table.from_pylist(held, schema))
            held.clear()

        yield write
        flush()


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


def _is_jsonl(path: Path) -> bool:
    return not path.stat().st_size or _are_columns([*first_row(path)])


_CSV = Own("a CSV file of scores that goen wrote", _is_csv)
_JSONL = Own("JSON lines of scores that goen wrote", _is_jsonl)
_PARQUET = Own("a Parquet file of scores that goen wrote", _is_parquet)
