"""Shards of pictures: parts of large sources that are read, and scored, one by one.

A shard says where its pictures are and holds none of them. It pickles, and can be read in another
process or on another machine, if what it names can be reached from there.
"""

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from goen.data.forms import PixelForm, Pixels
from goen.data.open_picture import SUFFIXES
from goen.data.pictures import read_picture
from goen.data.tar_stream import open_tar, require_end
from goen.data.urls import is_url, open_url, read_url
from goen.errors import DataCorrupt
from goen.files import printable, printable_path

# Pictures whose encoded content is taken from a Parquet file at once. Few: a small file may name
# one large content many times.
_ROWS_AT_ONCE = 4
# The content of a picture file is held in memory: more than almost any picture needs.
_MOST_BYTES = 1 << 29
_BUFFER = 1 << 20


@dataclass(frozen=True)
class NamedPicture:
    """A picture that is not read yet.

    Attributes:
        name: its path or address, as its row has it.
        read: the pixels ``(C, H, W)`` in the size (height, width) and the form that are given, or
            a ``DataError``.
        bytes_held: of its encoded content, if that is in memory.
    """

    name: str
    read: Callable[[tuple[int, int], PixelForm], Pixels]
    bytes_held: int = 0


class PictureShard(Protocol):
    """Pictures that are read one after the other, always in the same order."""

    @property
    def identity(self) -> str:
        """A hash of where its pictures are; their content is not read for it."""

    def pictures(self) -> Iterator[NamedPicture]:
        """The pictures. One that cannot be read raises when it is, not here.

        Raises:
            OSError: the connection to a remote file was lost.
        """


@dataclass(frozen=True)
class FileShard:
    """Picture files, by paths or URLs."""

    places: tuple[str, ...]

    @property
    def identity(self) -> str:
        return _hash("files", *self.places)

    def pictures(self) -> Iterator[NamedPicture]:
        for place in self.places:
            yield _remote(place) if is_url(place) else _local(Path(place))


@dataclass(frozen=True)
class ParquetShard:
    """Rows of a Parquet file with a column of contents of picture files.

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
    def identity(self) -> str:
        return _hash("parquet", self.place, self.column, self.start, self.stop, self.total)

    def pictures(self) -> Iterator[NamedPicture]:
        import pyarrow as pa

        number, shown = self.start, printable_place(self.place)
        try:
            for content in self._contents():
                yield _content(f"{shown}#{number}", content)
                number += 1
        except (pa.ArrowException, OSError) as error:
            yield _rest(f"{shown}#{number}", error)

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


@dataclass(frozen=True)
class TarShard:
    """The pictures in a tar file, such as one of WebDataset.

    Its other members are passed over, and so are hidden ones: the tars of macOS have one beside
    each file.
    """

    place: str

    @property
    def identity(self) -> str:
        return _hash("tar", self.place)

    def pictures(self) -> Iterator[NamedPicture]:
        shown = printable_place(self.place)
        last = "its first member"
        try:
            with open_place(self.place) as file, open_tar(file) as tar:
                for member in tar:
                    last = printable(member.name)
                    if member.isreg() and _is_picture(PurePosixPath(last)):
                        yield _content(f"{shown}#{last}", _member(tar, member))
                    tar.members = []  # type: ignore[attr-defined]  # it would remember all of them
                require_end(tar)
        except Exception as error:  # what tarfile and decompressors raise for damage has no end
            yield _rest(f"{shown}#{last}", error)


@dataclass(frozen=True)
class UnreadableShard:
    """A file that cannot be opened at all: one row with the reason."""

    place: str
    reason: str

    @property
    def identity(self) -> str:
        return _hash("unreadable", self.place, self.reason)

    def pictures(self) -> Iterator[NamedPicture]:
        yield _failed(printable_place(self.place), DataCorrupt(self.reason))


def open_place(place: str) -> AbstractContextManager[BinaryIO]:
    """A local file or a URL, opened for reading."""
    return open_url(place) if is_url(place) else Path(place).open("rb")


def printable_place(place: str) -> str:
    """The path or URL as text, whatever bytes it is made of."""
    return printable(place) if is_url(place) else printable_path(Path(place))


def _hash(*parts: str | int) -> str:
    digest = sha256()
    for part in parts:
        encoded = os.fsencode(str(part))
        digest.update(b"%d:" % len(encoded) + encoded)
    return digest.hexdigest()


def _local(path: Path) -> NamedPicture:
    return NamedPicture(
        printable_path(path), lambda size, form: read_picture(path, size, form=form)
    )


def _remote(url: str) -> NamedPicture:
    return NamedPicture(
        printable(url), lambda size, form: read_picture(read_url(url), size, url, form)
    )


def _content(name: str, content: object) -> NamedPicture:
    found = content.get("bytes") if isinstance(content, dict) else content
    if isinstance(found, bytes) and len(found) <= _MOST_BYTES:
        return NamedPicture(
            name, lambda size, form: read_picture(found, size, name, form), len(found)
        )
    return _failed(name, DataCorrupt(f"{name} holds no content of a picture file."))


def _is_picture(path: PurePosixPath) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    if member.size > _MOST_BYTES:
        return None
    file = tar.extractfile(member)
    return None if file is None else file.read()


def _rest(name: str, error: Exception) -> NamedPicture:
    """In place of what follows in a damaged file: one row.

    A connection that was lost is no damage: it raises, and the shard is read again.
    """
    if isinstance(error, (ConnectionError, TimeoutError)):
        raise error
    return _failed(name, DataCorrupt(f"{name} and what follows cannot be read: {error}."))


def _failed(name: str, error: DataCorrupt) -> NamedPicture:
    def fail(size: tuple[int, int], form: PixelForm) -> Pixels:
        raise error

    return NamedPicture(name, fail)
