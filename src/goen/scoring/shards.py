"""Shards: parts of sources that are read, and scored, one by one.

A shard says where its inputs are and holds none of them. It is small, hashable and pickles, and can
be read in another process or on another machine, if what it names can be reached from there.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from goen.data.feature_files import read_features, read_tensor_file
from goen.data.images.array_files import read_stack
from goen.data.images.decoding import MAX_PIXELS, read_image, resize_image
from goen.data.images.formats import SUFFIXES
from goen.data.images.pixel_format import PixelFormat, Pixels
from goen.errors import DataCorrupt, DataError, UsageError
from goen.scoring.tar_stream import open_tar, require_end
from goen.scoring.urls import MOST_BYTES, is_url, open_url, read_url

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
            OSError: the connection to a remote file was lost.
        """


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
                        file = tar.extractfile(member) if member.size <= MOST_BYTES else None
                        content = None if file is None else file.read()
                        yield content_item(f"{self.place}#{last}", content)
                    tar.members = []  # type: ignore[attr-defined]  # it would remember all of them
                require_end(tar)
        except Exception as error:  # what tarfile and decompressors raise for damage has no end
            yield rest_item(f"{self.place}#{last}", error)


@dataclass(frozen=True)
class StackShard(Described):
    """Images ``(N, C, H, W)`` or ``(N, H, W, C)`` in an NPY or NPZ file."""

    place: str
    channels: int
    bits: int

    def items(self) -> Iterator[Item]:
        number = 0
        wanted = PixelFormat(self.channels, 8 if self.bits == 8 else 16)
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
        copy = Path(folder, PurePosixPath(place).name)
        try:
            with open_url(place) as source, copy.open("wb") as target:
                copyfileobj(source, target)
        except FileNotFoundError as error:
            raise DataCorrupt(f"{place} does not exist.") from error
        yield copy


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
    if isinstance(error, (ConnectionError, TimeoutError)):
        raise error
    return Item(name, DataCorrupt(f"{name} and what follows cannot be read: {error}."))
