"""Parquet files with a column of images, cut into shards by rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from goen.errors import ExtraMissing, UsageError
from goen.io.files import printable
from goen.scoring.shards import (
    Described,
    Item,
    UnreadableShard,
    content_item,
    open_place,
    rest_item,
)

_ONE_COLUMN = "image"
# Images whose encoded content is taken from a file at once. Few: a small file may name one large
# content many times.
_ROWS_AT_ONCE = 4
_BUFFER = 1 << 20


@dataclass(frozen=True)
class ParquetShard(Described):
    """Rows of a Parquet file with a column of contents of image files.

    Attributes:
        place: path or URL of the file.
        column: of bytes, or of structs with ``bytes``.
        start: the first row, from 0.
        stop: the row after the last.
        total: rows of the file.
    """

    place: str
    column: str
    start: int
    stop: int
    total: int

    @property
    def count(self) -> int:
        return self.stop - self.start

    def items(self) -> Iterator[Item]:
        import pyarrow as pa

        number = self.start
        try:
            for content in self._contents():
                yield content_item(f"{self.place}#{number}", content)
                number += 1
        except (pa.ArrowException, OSError) as error:
            yield rest_item(f"{self.place}#{number}", error)

    def _contents(self) -> Iterator[object]:
        import pyarrow.parquet as pq

        with (
            open_place(self.place) as file,
            pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER) as table,
        ):
            count = table.metadata.num_row_groups
            groups, skip = self._groups(
                [table.metadata.row_group(number).num_rows for number in range(count)]
            )
            left = self.stop - self.start
            batches = table.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=[self.column])
            for batch in batches:
                # Rows of the group before the shard's first are not converted.
                wanted = batch.column(0).slice(min(skip, len(batch)), left)
                skip = max(0, skip - len(batch))
                left -= len(wanted)
                yield from (value.as_py() for value in wanted)
                if not left:
                    return

    def _groups(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """The row groups that hold the rows, and how many rows of the first come before them.

        Example:
            >>> ParquetShard("a.parquet", "image", 5, 9, 12)._groups([4, 4, 4])
            ([1, 2], 1)
        """
        firsts = [0, *accumulate(sizes)]
        within = [
            n for n in range(len(sizes)) if firsts[n] < self.stop and firsts[n + 1] > self.start
        ]
        return within, self.start - firsts[within[0]] if within else 0


def parquet_shards(
    place: str, column: str | None, size: int
) -> Iterator[ParquetShard | UnreadableShard]:
    """The rows of a file, so many in each shard; a file that cannot be read is a shard as well.

    Args:
        place: path or URL of the file.
        column: with the images; if not given, the only one of bytes, or that called ``image``.
        size: rows of a shard.

    Raises:
        UsageError: no such column.
        ExtraMissing: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExtraMissing("Parquet needs pyarrow: pip install 'goen[parquet]'.") from error
    try:
        with open_place(place) as file, pq.ParquetFile(file) as table:
            schema, total = table.schema_arrow, table.metadata.num_rows
    except (ConnectionError, TimeoutError):
        raise
    except (pa.ArrowException, OSError) as error:
        yield UnreadableShard(place, f"{place} cannot be read: {error}.")
        return
    kinds = {field.name: field.type for field in schema}
    found = [name for name, kind in kinds.items() if _holds_contents(kind)]
    chosen = _image_column(printable(place), found, column)
    for start in range(0, total, size):
        yield ParquetShard(place, chosen, start, min(total, start + size), total)


def _image_column(place: str, found: Sequence[str], asked: str | None) -> str:
    if asked is not None:
        if asked in found:
            return asked
        there = f"it has {', '.join(found)}" if found else "it has none"
        raise UsageError(f"{place} has no column {asked!r} of images; {there}.")
    if len(found) == 1 or _ONE_COLUMN in found:
        return _ONE_COLUMN if _ONE_COLUMN in found else found[0]
    several = f"several columns of bytes: {', '.join(found)}" if found else "no column of bytes"
    raise UsageError(
        f"{place} has {several}. Images are contents of files, as bytes or structs with bytes; "
        "name their column with --image-column."
    )


def _holds_contents(kind: object) -> bool:
    """Whether a column of this type may hold contents of image files."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(part.name == "bytes" and _holds_contents(part.type) for part in kind)  # type: ignore[attr-defined]
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
