"""Shards: parts of sources that are read, and scored, one by one.

A shard says where its inputs are and holds none of them. It is small, hashable and pickles, and can
be read in another process or on another machine, if what it names can be reached from there.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from hashlib import sha256
from itertools import accumulate
from pathlib import Path, PurePosixPath
from shutil import disk_usage
from tarfile import TarFile, TarInfo
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from goen.data.feature_files import read_features, read_tensor_file
from goen.data.images.array_files import read_stack
from goen.data.images.decoding import read_image
from goen.data.images.formats import HEAD_BYTES, SUFFIXES, begins_like_format
from goen.data.images.limits import MAX_PIXELS
from goen.data.images.pixel_format import Bits, PixelFormat, Pixels
from goen.data.images.resizing import resize_image
from goen.errors import DataCorrupt, DataError, ExtraMissing, UsageError
from goen.io.files import printable
from goen.scoring.tar_stream import open_tar, require_end
from goen.scoring.urls import (
    MOST_BYTES,
    TooMuch,
    is_lost,
    is_url,
    open_url,
    read_at_most,
    read_url,
    tried,
    url_name,
)

_IMAGE_COLUMN = "image"
# Images whose encoded content is taken from a file at once. One, which costs 50 µs: a small file
# may name one large content many times.
_ROWS_AT_ONCE = 1
_BUFFER = 1 << 20
# Of a file of arrays behind a URL, which is copied to this machine.
_MOST_COPIED = 1 << 36
# Of a stack, images that are read at once.
_IMAGES_AT_ONCE = 128

TensorRow = Mapping[str, NDArray[Any]]
Content = Path | str | bytes | Pixels | TensorRow | DataError
"""An image file, the URL of one, its content, pixels, a row of tensors, or why there is none."""


@dataclass(frozen=True, eq=False)
class Item:
    """An input that is not decoded yet.

    Attributes:
        name: its path or address.
        content: what it is decoded from.
    """

    name: str
    content: Content

    @property
    def bytes_held(self) -> int:
        """Of its content, as far as it is in memory."""
        if isinstance(self.content, np.ndarray):
            return self.content.nbytes
        return len(self.content) if isinstance(self.content, bytes) else 0

    def read(self, size: tuple[int, int], pixel_format: PixelFormat) -> Pixels:
        """The image ``(C, H, W)`` in this size (height, width) and format.

        Raises:
            DataError: it cannot be read.
        """
        content = self.content
        if isinstance(content, DataError):
            raise content
        if isinstance(content, np.ndarray):
            return resize_image(content, size, self.name)
        if isinstance(content, str):
            content = read_url(content)
        assert isinstance(content, Path | bytes)
        return read_image(content, size, self.name, pixel_format)

    def row(self) -> TensorRow:
        """The row of tensors by name.

        Raises:
            DataError: it cannot be read.
        """
        if isinstance(self.content, DataError):
            raise self.content
        assert isinstance(self.content, Mapping)
        return self.content


class Shard(Protocol):
    """Inputs that are read one after the other, always in the same order."""

    @property
    def identity(self) -> str:
        """A hash of where its inputs are; their content is not read for it."""

    @property
    def count(self) -> int | None:
        """Of its inputs, if that is known before they are read."""

    def items(self) -> Iterator[Item]:
        """The inputs. What cannot be read is an item with its error.

        Raises:
            LostConnection: that to a remote file.
        """


class LostConnection(Exception):  # noqa: N818  (as the built-in ones are named)
    """The connection to the file of a shard was lost; it may be read again.

    Attributes:
        item: in place of what follows, if it is not.
    """

    def __init__(self, item: Item) -> None:
        super().__init__(item.name)
        self.item = item


class Described:
    """A dataclass of texts and numbers, which say all about a shard."""

    @property
    def identity(self) -> str:
        digest = sha256(type(self).__name__.encode())
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            parts = value if isinstance(value, tuple) else (value,)
            digest.update(b"%d;" % len(parts))
            for part in parts:
                encoded = os.fsencode(str(part))
                digest.update(b"%d:" % len(encoded) + encoded)
        return digest.hexdigest()

    @property
    def count(self) -> int | None:
        return None


@dataclass(frozen=True)
class FileShard(Described):
    """Image files, by paths or URLs."""

    places: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.places)

    def items(self) -> Iterator[Item]:
        for place in self.places:
            yield Item(place, place) if is_url(place) else Item(str(Path(place)), Path(place))


@dataclass(frozen=True)
class TarShard(Described):
    """The images in a tar file, such as one of WebDataset.

    Its other members are passed over, and so are hidden ones: the tars of macOS have one beside
    each file.
    """

    place: str

    def items(self) -> Iterator[Item]:
        last = "its first member"
        try:
            with open_place(self.place) as stream, open_tar(stream) as tar:
                for member in tar:
                    last = member.name
                    path = PurePosixPath(last)
                    is_image = path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
                    if member.isreg() and is_image:
                        yield content_item(f"{self.place}#{last}", _image_content(tar, member))
                    tar.members = []  # type: ignore[attr-defined]  # it would remember all of them
                require_end(tar)
        except Exception as error:  # what tarfile and decompressors raise for damage has no end
            yield rest_item(f"{self.place}#{last}", error)


def _image_content(tar: TarFile, member: TarInfo) -> bytes | None:
    """The content of a member, only its beginning if that is of no image; ``None`` if too large.

    A tar of a few megabytes may have members of gigabytes.
    """
    file = tar.extractfile(member) if member.size <= MOST_BYTES else None
    if file is None:
        return None
    head = read_at_most(file, HEAD_BYTES)
    return read_at_most(file, member.size, head) if begins_like_format(head) else head


@dataclass(frozen=True)
class StackShard(Described):
    """Images ``(N, C, H, W)`` or ``(N, H, W, C)`` in an NPY or NPZ file."""

    place: str
    channels: int
    bits: Bits

    def items(self) -> Iterator[Item]:
        number = 0
        wanted = PixelFormat(self.channels, self.bits)
        try:
            with local_copy(self.place) as file:
                for images in read_stack(file, wanted, self.place, MAX_PIXELS, _IMAGES_AT_ONCE):
                    for image in images:
                        yield Item(f"{self.place}#{number}", image)
                        number += 1
        except DataError as error:
            yield Item(self.place, error)


@dataclass(frozen=True)
class TensorShard(Described):
    """Rows of features, or of what else a model takes, in an NPY, NPZ, safetensors or Parquet file.

    Attributes:
        place: path or URL of the file.
        are_features: whether they are features, arrays ``(N, D)``.
    """

    place: str
    are_features: bool

    def items(self) -> Iterator[Item]:
        read = read_features if self.are_features else read_tensor_file
        try:
            with local_copy(self.place) as file:
                arrays = read(file).arrays
                for number in range(len(next(iter(arrays.values())))):
                    row = {name: array[number] for name, array in arrays.items()}
                    yield Item(f"{self.place}#{number}", row)
        except DataError as error:
            yield Item(self.place, error)
        except UsageError as error:  # another kind of file, which a list may name
            yield Item(self.place, DataCorrupt(str(error)))


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
        number = self.start
        try:
            for content in self._contents():
                yield content_item(f"{self.place}#{number}", content)
                number += 1
        except Exception as error:  # pyarrow's for damage, and each protocol's own
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


@dataclass(frozen=True)
class UnreadableShard(Described):
    """A file that cannot be opened at all: one row with the reason."""

    place: str
    reason: str

    @property
    def count(self) -> int:
        return 1

    def items(self) -> Iterator[Item]:
        yield Item(self.place, DataCorrupt(self.reason))


def open_place(place: str) -> AbstractContextManager[BinaryIO]:
    """A local file or a URL, opened for reading."""
    return open_url(place) if is_url(place) else Path(place).open("rb")


@contextmanager
def local_copy(place: str) -> Iterator[Path]:
    """A local file as it is, or what is behind a URL as a file that is removed again."""
    if not is_url(place):
        yield Path(place)
        return
    with TemporaryDirectory(prefix="goen-") as folder:
        copy = Path(folder, PurePosixPath(url_name(place)).name)
        tried(place, "copied", lambda: _copy(place, copy))
        yield copy


def _copy(url: str, target: Path) -> None:
    """Write what is behind a URL to a file, if there is room for it and as much again."""
    left = min(_MOST_COPIED, disk_usage(target.parent).free // 2)
    with open_url(url) as source, target.open("wb") as file:
        while part := source.read(_BUFFER):
            left -= len(part)
            if left < 0:
                raise TooMuch(f"it is larger than {_MOST_COPIED:,} bytes, or half of the free disk")
            file.write(part)


def content_item(name: str, content: object) -> Item:
    """The content of an image file, as bytes or in a struct, or the reason why it is none."""
    found = content.get("bytes") if isinstance(content, dict) else content
    if isinstance(found, bytes) and len(found) <= MOST_BYTES:
        return Item(name, found)
    return Item(name, DataCorrupt(f"{name} holds no content of an image file."))


def rest_item(name: str, error: Exception) -> Item:
    """In place of what follows in a damaged file: one row.

    A connection that was lost is no damage: it raises, and the shard is read again.
    """
    item = Item(name, DataCorrupt(f"{name} and what follows cannot be read: {error}."))
    if is_lost(error):
        raise LostConnection(item) from error
    return item


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

    def head() -> tuple["pa.Schema", int]:
        with open_place(place) as file, pq.ParquetFile(file) as table:
            return table.schema_arrow, table.metadata.num_rows

    try:
        schema, total = tried(place, "read", head) if is_url(place) else head()
    except DataCorrupt as error:
        yield UnreadableShard(place, str(error))
        return
    except Exception as error:  # what a damaged file makes pyarrow raise has no end
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
    if len(found) == 1 or _IMAGE_COLUMN in found:
        return _IMAGE_COLUMN if _IMAGE_COLUMN in found else found[0]
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
