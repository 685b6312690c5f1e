"""What a user names to be scored, as shards.

Image files, folders, lists, stacks of images, Parquet files, tars, and URLs of all these; or, for a
gate of features or other tensors, files of their rows.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from goen.data.feature_files import SUFFIXES as TENSOR_SUFFIXES
from goen.data.images.array_files import read_array_header
from goen.data.images.finding import (
    begins_as_image,
    describe_skipped,
    find_images,
    looks_like_image,
)
from goen.data.images.formats import SUFFIXES
from goen.data.images.limits import MAX_PIXELS
from goen.data.images.pixel_format import COLOUR
from goen.data.input_spec import ImageInputs
from goen.errors import DataCorrupt, DataError, ExtraMissing, UsageError
from goen.features.precomputed import Precomputed
from goen.gate.gate import Gate
from goen.io.arrays import ARRAY_SUFFIXES
from goen.io.files import is_folder, printable
from goen.scoring.shards import (
    FileShard,
    Shard,
    StackShard,
    TarShard,
    TensorShard,
    UnreadableShard,
    open_place,
    parquet_shards,
)
from goen.scoring.urls import check_protocol, find_urls, is_url, url_name

STANDARD_INPUT = "-"
DEFAULT_SHARD_SIZE = 4096
_PARQUET = (".parquet", ".pq")
_TARS = (".tar", ".tar.gz", ".tgz")
_LISTS = (".txt", ".lst")
# A URL that ends so is that of a file, and its server is not asked whether it is a folder.
_FILES = (*SUFFIXES, *_PARQUET, *_TARS, *ARRAY_SUFFIXES, *TENSOR_SUFFIXES)
_HEAD = 1 << 16
# Of a line of a list: more than any path or URL has.
_LONGEST_NAME = 1 << 13


def takes_tensors(gate: Gate) -> bool:
    """Whether the gate takes features or other tensors, which are rows of files, and no images."""
    return not isinstance(gate.inputs, ImageInputs)


def check_given(given: Sequence[str]) -> None:
    """Raise a UsageError if nothing of what is given is there: a path among others is a row.

    Also for a URL whose protocol is not known here; in a list it is a row.
    """
    if [*given].count(STANDARD_INPUT) > 1:
        raise UsageError("Standard input can be read once: give - once.")
    if not given:
        raise UsageError("Name the images or folders to score.")
    if not any(p == STANDARD_INPUT or is_url(p) or os.path.lexists(p) for p in given):
        raise UsageError(f"{printable(given[0])} does not exist.")
    for place in filter(is_url, given):
        check_protocol(place)


@dataclass
class Sources:
    """The inputs that a user names, cut into shards; nothing is held but the shard at hand.

    Attributes:
        given: paths and URLs: of folders of images, of images, and by the ends of their names of
            Parquet files, tars, stacks (NPY, NPZ) and lists (``.txt``: a path or URL per line);
            ``-`` is a list on standard input. For a gate of tensors, their files and folders.
        gate: that is to score them.
        shard_size: images of a shard; a tar, a stack or a file of tensors is a shard of its own.
        column: of Parquet files; if not given, the only one with images.
        stdin: for ``-``.
        output: a file that is written, and therefore may not be among them.
        skipped: other files in the folders, by the ends of their names; counted while listing.
    """

    given: Sequence[str]
    gate: Gate
    shard_size: int = DEFAULT_SHARD_SIZE
    column: str | None = None
    stdin: BinaryIO | None = None
    output: Path | None = None
    skipped: Counter[str] = field(default_factory=Counter)
    # Files that are named, which are not found in a folder again, and folders that were entered.
    _passed: set[str] = field(default_factory=set, init=False, repr=False)
    _entered: bool = field(default=False, init=False, repr=False)
    _arrays: bool = field(default=False, init=False, repr=False)

    def shards(self) -> Iterator[Shard]:
        """The shards, in the order in which they are given; always the same for the same files.

        Arrays in folders are images for a gate whose images are not colour of 8 bits, and where no
        image is found.

        Raises:
            UsageError: nothing to score, a folder of this machine that cannot be listed, or no
                column of images.
        """
        inputs = self.gate.inputs
        arrays = isinstance(inputs, ImageInputs) and inputs.pixel_format != COLOUR
        found = self._shards(arrays)
        first = next(found, None)
        if first is None and not arrays and STANDARD_INPUT not in self.given:
            self.skipped.clear()
            found = self._shards(arrays=True)
            first = next(found, None)
        if first is None:
            raise self._nothing()
        return chain([first], found)

    def _nothing(self) -> UsageError:
        if STANDARD_INPUT in self.given and len(self.given) == 1 and not self.skipped:
            return UsageError("Standard input holds no paths.")
        skipped = f": {describe_skipped(self.skipped)}" if self.skipped else ""
        wanted = "images"
        if takes_tensors(self.gate):
            wanted = f"{', '.join(TENSOR_SUFFIXES)} files, of whose rows this gate scores each,"
        return UsageError(f"There are no {wanted} in {printable(', '.join(self.given))}{skipped}.")

    def _shards(self, arrays: bool) -> Iterator[Shard]:
        files: list[str] = []
        for found in self._found(arrays):
            if isinstance(found, str):
                files.append(found)
            if files and (len(files) == self.shard_size or not isinstance(found, str)):
                yield FileShard(tuple(files))
                files = []
            if not isinstance(found, str):
                yield found
        if files:
            yield FileShard(tuple(files))

    def _found(self, arrays: bool) -> Iterator[str | Shard]:
        """One pass over what is given: image files, and shards of other files."""
        named = (p for p in self.given if p != STANDARD_INPUT and not is_url(p))
        self._passed = {str(Path(p).absolute()) for p in named if not is_folder(Path(p))}
        self._entered, self._arrays = False, arrays
        for place in self.given:
            if place == STANDARD_INPUT and self.stdin is not None:
                yield from self._listed(read_list(self.stdin))
            elif _is_named(place, _LISTS):
                try:
                    yield from self._listed(_lines(place))
                except DataCorrupt as error:
                    yield UnreadableShard(place, str(error))
            else:
                yield from self._within(place)

    def _listed(self, places: Iterable[str]) -> Iterator[str | Shard]:
        """Without files of a folder that was named before them, as ``find FOLDER`` prints them."""
        for place in places:
            path = Path(place)
            found_before = (
                self._entered
                and not (is_url(place) or is_folder(path) or path.name.startswith("."))
                and os.path.realpath(path.parent) in self._passed
                and looks_like_image(path, arrays=self._arrays)
            )
            if not found_before:
                yield from self._within(place)

    def _within(self, place: str) -> Iterator[str | Shard]:
        """A file, or those in a folder or behind a URL."""
        if is_url(place):
            for found, error in find_urls(place, _FILES):
                if error is not None:
                    yield UnreadableShard(found, error)
                elif "::" in found and found != place:
                    # fsspec would open another file: what it takes for a chain of file systems.
                    yield UnreadableShard(found, f"{printable(found)} has '::' in its name.")
                else:
                    yield from self._file(found)
            return
        files: Iterable[Path] = [Path(place)]
        if is_folder(Path(place)) and takes_tensors(self.gate):
            files = self._tensor_files(Path(place))
        elif is_folder(Path(place)):
            self._entered = True
            files = find_images(Path(place), self.skipped, self._passed, arrays=self._arrays)
        for file in files:
            yield from self._file(str(file))

    def _tensor_files(self, folder: Path) -> Iterator[Path]:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                if file.suffix in TENSOR_SUFFIXES:
                    yield file
                else:
                    self.skipped[file.suffix.lower() or "no ending"] += 1

    def _file(self, place: str) -> Iterator[str | Shard]:
        if self.output is not None:
            _check_not_written(place, self.output)
        if takes_tensors(self.gate):
            yield TensorShard(place, isinstance(self.gate.network, Precomputed))
        elif _is_named(place, _TARS):
            yield TarShard(place)
        elif _is_named(place, _PARQUET):
            yield from self._parquet(place)
        elif is_stack(place):
            wanted = self.gate.pixel_format
            yield StackShard(place, wanted.channels, wanted.bits)
        else:
            yield place

    def _parquet(self, place: str) -> Iterator[Shard]:
        """A file without the column is an error if it is given, and a row if it is found."""
        try:
            yield from parquet_shards(place, self.column, self.shard_size)
        except ExtraMissing:
            raise
        except UsageError as error:
            if place in self.given:
                raise
            yield UnreadableShard(place, str(error))


def _check_not_written(place: str, output: Path) -> None:
    try:
        same = Path(place).samefile(output)
    except OSError:  # it does not exist, or cannot: its name is too long
        return
    if same:
        raise UsageError(f"{output} is one of the files to score. Choose another path for --out.")


def is_stack(place: str) -> bool:
    """Whether a file holds a stack of images; not if it cannot be read. One far away does."""
    if not (url_name(place) if is_url(place) else place).lower().endswith(tuple(ARRAY_SUFFIXES)):
        return False
    try:
        return is_url(place) or read_array_header(Path(place), place, MAX_PIXELS).is_stack
    except DataError:
        return False


def _lines(place: str) -> Iterator[str]:
    """The paths of a list in a file.

    Raises:
        UsageError: a file of this machine that cannot be read, or is an image.
        DataCorrupt: behind a URL, what cannot be read.
    """
    try:
        with open_place(place) as file:
            yield from read_list(file)
    except UsageError:
        raise
    except Exception as error:  # each protocol has exceptions of its own
        reason = f"The list {printable(place)} cannot be read: {error}."
        if is_url(place):
            raise DataCorrupt(reason) from error
        if isinstance(error, OSError):
            raise UsageError(reason) from error
        raise


def read_list(file: BinaryIO) -> Iterator[str]:
    """The paths of a list: one per line, or, if a NUL is near its beginning, each up to a NUL.

    Of a line that is longer than any path only the beginning is given.

    Raises:
        UsageError: it is an image, not a list.
    """
    head = file.read(_HEAD)
    if begins_as_image(head):
        raise UsageError(
            "The list of paths, or standard input, is an image itself. Write the image to a "
            "file, and name the file."
        )
    # On Windows lines end in CR LF; a path that ends at a NUL may end in CR itself.
    end, beyond = (b"\0", b"") if b"\0" in head else (b"\n", b"\r")
    left = b""
    for block in chain([head], iter(lambda: file.read(_HEAD), b"")):
        *names, left = (left + block).split(end)
        yield from (os.fsdecode(name) for n in names if (name := n.removesuffix(beyond)))
        left = left[:_LONGEST_NAME]
    if last := left.removesuffix(beyond):
        yield os.fsdecode(last)


def _is_named(place: str, ends: tuple[str, ...]) -> bool:
    """Whether a place is named so, and is no image under that name."""
    if is_url(place):
        return url_name(place).lower().endswith(ends)
    return place.lower().endswith(ends) and not begins_as_image(Path(place))
