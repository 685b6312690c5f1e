"""Where rows go: JSON lines, CSV and Parquet, to a file or a stream, as they come or sorted."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TextIO, get_args

from goen.checks import check_choice
from goen.errors import ExtraMissing, UsageError
from goen.escaping import csv_line, json_line, visible
from goen.gate.prediction import ScoreRow
from goen.io.files import whole_file
from goen.scoring.pipeline import NumberedShard
from goen.scoring.rows import RowCounts

RowFormat = Literal["jsonl", "csv", "parquet"]
Write = Callable[[ScoreRow], None]

_BY_SUFFIX: dict[str, RowFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
_PARQUET_ROWS = 10_000


@dataclass(frozen=True)
class RowSink:
    """Passes rows on to a function, one by one.

    Attributes:
        write_row: takes each.
        flagged_only: leave out rows of inputs that are not flagged or cannot be read.
    """

    write_row: Write
    flagged_only: bool = False

    def finished(self, task: NumberedShard) -> None:
        """No rows are there before."""

    def write(self, task: NumberedShard, batches: Iterable[list[ScoreRow]]) -> RowCounts:
        """Pass on the rows of a shard; their counts."""
        return write_rows(batches, self.write_row, flagged_only=self.flagged_only)

    def close(self, shards: int) -> None:
        """Nothing is left to do: whoever made the function ends it."""


def write_rows(
    batches: Iterable[list[ScoreRow]], write_row: Write, *, flagged_only: bool
) -> RowCounts:
    """Pass on the rows, all or those that are flagged; the counts of all."""
    counts = RowCounts()
    for rows in batches:
        counts += RowCounts.of(rows)
        for row in rows:
            if row["is_ood"] or not flagged_only:
                write_row(row)
    return counts


def is_row_file(out: Path) -> bool:
    """Whether a file is named as one of rows."""
    return out.suffix.lower() in _BY_SUFFIX


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


@contextmanager
def open_writer(
    out: Path, row_format: RowFormat, names: Sequence[str], *, overwrite: bool = False
) -> Iterator[Write]:
    """A writer of rows to a file, which appears when it is complete.

    Args:
        out: the file.
        row_format: its format.
        names: all columns, in order.
        overwrite: whether a file there may be replaced.

    Raises:
        UsageError: an unknown format, Parquet without pyarrow, or something at ``out`` that may not
            be replaced.
    """
    with (
        whole_file(out, overwrite=overwrite) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
        stream_writer(file, row_format, names) as write,
    ):
        yield write


def stream_writer(
    stream: TextIO, form: RowFormat, names: Sequence[str]
) -> AbstractContextManager[Write]:
    """A writer of rows to a text stream; Parquet goes to the buffer beneath it."""
    check_choice("format", form, get_args(RowFormat))
    if form == "parquet":
        return _parquet(stream.buffer, names)
    return _text(stream, form, names)


@contextmanager
def _text(file: TextIO, form: RowFormat, names: Sequence[str]) -> Iterator[Write]:
    # Written with the first row, or at the end: nothing is written if there is nothing to score.
    header = [csv_line(names)] if form == "csv" else []
    ascii_only = "utf" not in (file.encoding or "utf-8").lower()
    is_terminal = file.isatty()

    def write(row: ScoreRow) -> None:
        if is_terminal:  # it obeys control characters in names
            row = {k: visible(v) if isinstance(v, str) else v for k, v in row.items()}
        if form == "jsonl":
            file.write(json_line(row, ascii_only=ascii_only))
        else:
            file.write("".join(header) + csv_line(row[name] for name in names))
            header.clear()

    yield write
    file.writelines(header)


@contextmanager
def _parquet(file: BinaryIO, names: Sequence[str]) -> Iterator[Write]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExtraMissing("Parquet needs pyarrow: pip install 'goen[parquet]'.") from error
    text = {"path", "label", "error"}
    kinds = {name: pa.string() if name in text else pa.float64() for name in names}
    kinds |= {name: pa.bool_() for name in ("is_ood", "accepted", "new_class") if name in kinds}
    schema = pa.schema(list(kinds.items()))
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
