"""What a user names to be scored, as shards: folders, lists, Parquet files, tars, URLs of them."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from goen.data.find_pictures import begins_as_picture, find_pictures
from goen.data.picture_shards import (
    FileShard,
    ParquetShard,
    PictureShard,
    TarShard,
    UnreadableShard,
    open_place,
    printable_place,
)
from goen.data.urls import find_urls, is_url
from goen.errors import ExtraMissing, UsageError
from goen.files import is_folder

STANDARD_INPUT = "-"
_PARQUET = (".parquet", ".pq")
_TARS = (".tar", ".tar.gz", ".tgz")
_LISTS = (".txt", ".lst")
_HEAD = 1 << 16
_ONE_COLUMN = "image"


@dataclass
class PictureSources:
    """The pictures that a user names, cut into shards; nothing is held but the shard at hand.

    Attributes:
        given: paths and URLs: of folders of pictures, of pictures, and by the ends of their names
            of Parquet files, tars and lists (``.txt``: a path or URL per line); ``-`` is a list on
            standard input.
        shard_size: pictures of a shard; a tar is a shard of its own.
        column: of Parquet files; if not given, the only one with pictures.
        stdin: for ``-``.
        arrays: whether NPY and NPZ files in local folders are pictures too.
        skipped: other files in the folders, by the ends of their names; counted while listing.
    """

    given: Sequence[str]
    shard_size: int
    column: str | None = None
    stdin: BinaryIO | None = None
    arrays: bool = False
    skipped: Counter[str] = field(default_factory=Counter)

    def shards(self) -> Iterator[PictureShard]:
        """The shards, in the order in which they are given; always the same for the same files.

        Raises:
            UsageError: a URL or folder that cannot be listed, or no column of pictures.
        """
        passed = {str(Path(place).absolute()) for place in self.given if _is_plain_file(place)}
        files: list[str] = []
        for found in self._expanded(passed):
            if isinstance(found, str):
                files.append(found)
            if files and (len(files) == self.shard_size or not isinstance(found, str)):
                yield FileShard(tuple(files))
                files = []
            if not isinstance(found, str):
                yield found
        if files:
            yield FileShard(tuple(files))

    def _expanded(self, passed: set[str]) -> Iterator[str | PictureShard]:
        """Picture files, and shards of other files, with those of folders and lists in place."""
        for place in self.given:
            if place == STANDARD_INPUT and self.stdin is not None:
                yield from self._within(read_list(self.stdin), passed)
            elif place.lower().endswith(_LISTS):
                yield from self._listed(place, passed)
            else:
                yield from self._within([place], passed)

    def _listed(self, place: str, passed: set[str]) -> Iterator[str | PictureShard]:
        try:
            with open_place(place) as file:
                yield from self._within(read_list(file), passed)
        except OSError as error:
            raise UsageError(f"The list {place} cannot be read: {error}.") from error

    def _within(self, places: Iterable[str], passed: set[str]) -> Iterator[str | PictureShard]:
        for place in places:
            if is_url(place):
                for found in find_urls(place):
                    if "::" in found and found != place:
                        # fsspec would open another file: what it takes for a chain of file systems.
                        yield UnreadableShard(
                            found, f"{printable_place(found)} has '::' in its name."
                        )
                    else:
                        yield from self._named(found)
            elif is_folder(Path(place)):
                inside = find_pictures(Path(place), self.skipped, passed, arrays=self.arrays)
                yield from map(str, inside)
            else:
                yield from self._named(place)

    def _named(self, place: str) -> Iterator[str | PictureShard]:
        if place.lower().endswith(_TARS):
            yield TarShard(place)
        elif place.lower().endswith(_PARQUET):
            yield from self._parquet_shards(place)
        else:
            yield place

    def _parquet_shards(self, place: str) -> Iterator[PictureShard]:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise ExtraMissing("Parquet needs pyarrow: pip install 'goen[parquet]'.") from error
        shown = printable_place(place)
        try:
            with open_place(place) as file, pq.ParquetFile(file) as table:
                schema, total = table.schema_arrow, table.metadata.num_rows
        except (ConnectionError, TimeoutError):
            raise
        except (pa.ArrowException, OSError) as error:
            yield UnreadableShard(place, f"{shown} cannot be read: {error}.")
            return
        kinds = {field.name: field.type for field in schema}
        column = _picture_column(shown, [n for n, k in kinds.items() if _holds(k)], self.column)
        for start in range(0, total, self.shard_size):
            stop = min(total, start + self.shard_size)
            yield ParquetShard(place, column, start, stop, total)


def is_source_of_pictures(place: str) -> bool:
    """Whether a file is named as a tar, a Parquet file or a list of pictures, and is no picture.

    Example:
        >>> is_source_of_pictures("photos.tar.gz"), is_source_of_pictures("photo.png")
        (True, False)
    """
    named = place.lower().endswith((*_TARS, *_PARQUET, *_LISTS))
    return named and not is_folder(Path(place)) and not begins_as_picture(Path(place))


def read_list(file: BinaryIO) -> Iterator[str]:
    """The paths of a list: one per line, or, if a NUL is near its beginning, each up to a NUL.

    Raises:
        UsageError: it is a picture, not a list.
    """
    head = file.read(_HEAD)
    if begins_as_picture(head):
        raise UsageError(
            "The list of paths, or standard input, is a picture itself. Write the picture to a "
            "file, and name the file."
        )
    # On Windows lines end in CR LF; a path that ends at a NUL may end in CR itself.
    end, beyond = (b"\0", b"") if b"\0" in head else (b"\n", b"\r")
    left = b""
    for block in chain([head], iter(lambda: file.read(_HEAD), b"")):
        *names, left = (left + block).split(end)
        yield from (os.fsdecode(name) for n in names if (name := n.removesuffix(beyond)))
    if last := left.removesuffix(beyond):
        yield os.fsdecode(last)


def _is_plain_file(place: str) -> bool:
    return place != STANDARD_INPUT and not is_url(place) and not is_folder(Path(place))


def _picture_column(place: str, found: Sequence[str], asked: str | None) -> str:
    if asked is not None:
        if asked in found:
            return asked
        there = f"it has {', '.join(found)}" if found else "it has none"
        raise UsageError(f"{place} has no column {asked!r} of pictures; {there}.")
    if len(found) == 1 or _ONE_COLUMN in found:
        return _ONE_COLUMN if _ONE_COLUMN in found else found[0]
    several = f"several columns of bytes: {', '.join(found)}" if found else "no column of bytes"
    raise UsageError(
        f"{place} has {several}. Pictures are contents of files, as bytes or structs with bytes; "
        "name their column with --image-column."
    )


def _holds(kind: object) -> bool:
    """Whether a column of this type may hold contents of picture files."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(part.name == "bytes" and _holds(part.type) for part in kind)  # type: ignore[attr-defined]
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
