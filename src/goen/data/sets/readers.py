"""Readers of the usual file formats of image sets, each to the same chunks of pixels.

``goen.data.sets.sources`` decides which reader is used, ``goen.data.sets.catalogue`` describes the
sets.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from goen.data.images.array_files import read_array_header, read_labels, read_stack
from goen.data.images.decoding import read_image
from goen.data.images.finding import find_images
from goen.data.images.formats import SUFFIXES, open_image
from goen.data.images.limits import MAX_PIXELS
from goen.data.images.pixel_format import COLOUR, PixelFormat
from goen.data.images.resizing import RESIZE_FILTER, resize_image
from goen.data.imageset import DIGEST, Digests, Labels, Pixels, digest_images
from goen.errors import DataCorrupt, first_of
from goen.io.files import file_sha256


class Chunk(NamedTuple):
    """Some images of a source.

    Attributes:
        pixels: ``(n, C, H, W)``.
        labels: ``(n,)``.
        content: ``(n,)`` a hash of what each was read from, before it was resized; that of the
            pixels if not given.
        broken: files that cannot be read, below the source's folder, and why.
    """

    pixels: Pixels
    labels: Labels
    content: Digests | None = None
    broken: Mapping[str, str] = MappingProxyType({})


Chunks = Iterator[Chunk] | Iterator[tuple[Pixels, Labels]]
Batches = list[tuple[Pixels, Labels]]
Members = Sequence[tuple[str, bytes]]
"""Files as (where, content)."""
Decode = Callable[[Members], Batches]
# Of unreadable images, or of folders, in a message.
_NAMED = 10
_FOLDER_CHUNK = 512
_MOST_CLASSES = 100_000
_MOST_MEMBER_BYTES = 1 << 28  # CIFAR-100's training images, the largest file, have 153,700,000
_MOST_PACKED_BYTES = 1 << 26  # MNIST's largest file, its training images, has 47,040,016


@dataclass(frozen=True)
class Reading:
    """What lies in a source, before its pixels are read: enough to lay out the arrays.

    ``chunks`` gives pixels and labels until ``count`` images are through, less those that are
    broken.
    """

    count: int
    image_size: tuple[int, int]
    classes: tuple[str, ...]
    chunks: Callable[[], Chunks]
    pixel_format: PixelFormat = COLOUR


@dataclass(frozen=True)
class Source:
    """Where a set lies: ``identity`` changes when its content does, ``read`` opens it."""

    identity: str
    where: str
    read: Callable[[], Reading]

    @classmethod
    def of(cls, place: Path, read: Callable[[], Reading], *facts: object) -> "Source":
        """The source at a place, identified by facts that JSON can hold."""
        return cls(hashlib.sha256(json.dumps(facts).encode()).hexdigest(), str(place), read)


def read_files(files: Sequence[Path]) -> Members:
    """The content of each file, unpacked if it is a ``.gz``; a bomb does not fill the memory."""
    found = []
    for file in files:
        packed = file.suffix == ".gz"
        most = _MOST_PACKED_BYTES if packed else _MOST_MEMBER_BYTES
        try:
            with gzip.open(file) if packed else file.open("rb") as stream:
                found.append((str(file), _bounded(stream.read, most, str(file))))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataCorrupt(f"{file} is not a whole gzip file: {error}. Get it again.") from error
    return found


def read_archive(archive: Path, names: Sequence[str]) -> Members:
    """The named files of a tar archive, without unpacking it.

    A member is identified by its last path component, so nothing in its path can lead anywhere.
    """
    try:
        with tarfile.open(archive) as tar:
            by_name = {Path(m.name).name: m for m in tar.getmembers() if m.isfile()}
            absent = [name for name in names if name not in by_name]
            if absent:
                raise DataCorrupt(
                    f"{archive} has no member {absent[0]}. Delete it and get the set again."
                )
            streams = {f"{archive}:{name}": tar.extractfile(by_name[name]) for name in names}
            return [
                (where, _bounded(stream.read, _MOST_MEMBER_BYTES, where))
                for where, stream in streams.items()
                if stream is not None
            ]
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataCorrupt(
            f"{archive} is not a whole tar archive: {error}. Delete it and get the set again."
        ) from error


def _bounded(read: Callable[[int], bytes], most: int, where: str) -> bytes:
    content = read(most + 1)
    if len(content) > most:
        raise DataCorrupt(f"{where} holds more than {most:,} bytes; no file of a known set does.")
    return content


def published(decode: Decode, files: Members, classes: tuple[str, ...]) -> Reading:
    """A set in files as it was published, which are read whole."""
    batches = decode(files)
    for _, labels in batches:
        _check_labels(labels, classes, files[0][0])
    height, width = batches[0][0].shape[2:]
    count = sum(len(labels) for _, labels in batches)
    return Reading(count, (height, width), classes, lambda: iter(batches))


def cifar_records(files: Members, label_bytes: int = 1) -> Batches:
    """CIFAR's binary format: per image ``label_bytes`` bytes, of which the last is the class, then
    1,024 bytes each of red, green and blue."""
    width = label_bytes + 3072
    batches: Batches = []
    for where, data in files:
        if not data or len(data) % width:
            raise DataCorrupt(
                f"{where} has {len(data):,} bytes; records of {width:,} bytes were expected, so it "
                "is cut short or of another format. Delete it and get the set again."
            )
        records = np.frombuffer(data, np.uint8).reshape(-1, width)
        images = records[:, label_bytes:].reshape(-1, 3, 32, 32)
        batches.append((images, records[:, label_bytes - 1].astype(np.int64)))
    return batches


def mat_file(files: Members) -> Batches:
    """SVHN's cropped digits: ``X`` (32, 32, 3, N) uint8; ``y`` (N, 1), where 10 means digit 0."""
    from scipy.io import loadmat  # takes a while to import, and only this format needs it

    ((where, data),) = files
    try:
        found = loadmat(io.BytesIO(data), variable_names=["X", "y"])
    except Exception as error:  # scipy lets many kinds out of a broken file
        raise DataCorrupt(f"{where} is not a MATLAB file that SciPy can read: {error}.") from error
    images, labels = found.get("X", np.empty(0)), found.get("y", np.empty(0)).ravel()
    shape = images.shape
    if images.dtype != np.uint8 or not images.size or shape[2:] != (3, len(labels)):
        raise DataCorrupt(
            f"{where} should hold X (H, W, 3, N) of uint8 and y (N, 1), and holds {images.dtype} "
            f"{shape} and {len(labels)} labels. Is it SVHN's cropped-digits file?"
        )
    if not np.isin(labels, np.arange(1, 11)).all():
        raise DataCorrupt(f"{where}: y should hold 1..10, where 10 means the digit 0.")
    return [(images.transpose(3, 2, 0, 1), labels.astype(np.int64) % 10)]


def idx_files(files: Members) -> Batches:
    """MNIST's format; the 28×28 digits are set into 32×32 with a black rim of two pixels."""
    (where, images), (_, labels) = files
    magic, count, height, width = np.frombuffer(images[:16].ljust(16, b"\0"), ">i4").tolist()
    whole = len(images) == 16 + count * height * width and len(labels) == 8 + count
    if magic != 2051 or count < 1 or not whole:
        raise DataCorrupt(f"{where} is not a whole IDX file of images with one label each.")
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(count, 1, height, width)
    padded = np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2)))
    numbers = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    return [(np.repeat(padded, 3, axis=1), numbers)]


def png_rows(files: Members) -> Batches:
    """The labels as a JSON list; PNG files of 1024×10000 RGB, a row per image."""
    (_, text), *pictures = files
    labels = np.array(json.loads(text), dtype=np.int64)
    batches: Batches = []
    for number, (where, data) in enumerate(pictures):
        try:
            rows = np.asarray(open_image(io.BytesIO(data)))
        except (OSError, ValueError, SyntaxError, zlib.error) as error:
            raise DataCorrupt(f"{where} is not a whole image: {error}.") from error
        if rows.shape != (10_000, 1024, 3):
            raise DataCorrupt(f"{where} has shape {rows.shape}; (10000, 1024, 3) was expected.")
        images = rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        batches.append((images, labels[number * 10_000 : (number + 1) * 10_000]))
    return batches


def class_folders(
    path: Path,
    size: tuple[int, int] | None,
    classes: tuple[str, ...] | None,
    skipped: Counter[str] | None = None,
    pixel_format: PixelFormat = COLOUR,
) -> Source:
    """A folder with one folder of images per class, the folder's name being the class.

    ``size`` (height, width) is what every image is resized to; ``None`` takes the first
    image's. If ``classes`` are given, they are the only folders read, in that order. The
    images are identified by place, name, size and times, so that a large folder need not be read
    twice. ``skipped`` counts the other files, as in ``find_images``. Images that cannot be read are
    among the ``broken`` of its chunks.
    """
    names = classes or class_names(path)
    for name in names:
        if os.fsencode(name) != name.encode("utf-8", "replace"):
            raise DataCorrupt(f"{path} has a class folder {name!r}, which is no text: rename it.")
    by_class = class_files(path, names, skipped)
    files = [file for found in by_class for file in found]
    labels = np.repeat(np.arange(len(names)), [len(found) for found in by_class])
    stats = file_stats(files, path)
    # The way images are read is part of it: sets prepared otherwise are prepared again.
    decoding = (pixel_format.decoding, RESIZE_FILTER, "content of files")
    facts = (str(path.resolve()), names, size, stats, *decoding)

    def read() -> Reading:
        as_it_is = partial(read_image, size=None, pixel_format=pixel_format)
        height, width = size or _first_image(files, as_it_is).shape[1:]
        decode = partial(read_image, size=(height, width), pixel_format=pixel_format)
        return read_image_files(files, labels, path, names, decode)

    return Source.of(path, read, *facts)


def file_stats(files: Sequence[Path], folder: Path) -> list[tuple[str, int, int, int, int]]:
    """Name, size and times of each file: a large set need not be read to be known again."""
    found = [(str(f.relative_to(folder)), f.stat()) for f in files]
    return [(name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in found]


def read_image_files(
    files: Sequence[Path],
    labels: Labels,
    folder: Path,
    names: tuple[str, ...],
    decode: Callable[[Path], Pixels],
) -> Reading:
    """The images of these files, all decoded to the shape of the first that can be read.

    Args:
        files: in the folder.
        labels: ``(N,)``.
        folder: from which broken files are named.
        names: of the classes.
        decode: gives ``(C, H, W)``.
    """
    first = _first_image(files, decode)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(files), _FOLDER_CHUNK):
            some = files[start : start + _FOLDER_CHUNK]
            yield _read_chunk(some, labels[start:], folder, decode, first)

    channels, height, width = first.shape
    pixel_format = PixelFormat(channels, 8 if first.dtype == np.uint8 else 16)
    return Reading(len(files), (height, width), names, chunks, pixel_format)


def _first_image(files: Sequence[Path], decode: Callable[[Path], Pixels]) -> Pixels:
    reasons = []
    for file in files:
        try:
            return decode(file)
        except DataCorrupt as error:
            reasons.append(str(error))
    raise unreadable(reasons)


def _read_chunk(
    files: Sequence[Path],
    labels: Labels,
    folder: Path,
    decode: Callable[[Path], Pixels],
    like: Pixels,
) -> Chunk:
    """These files, whose labels come first among the labels, in the shape of one image."""
    pixels = np.empty((len(files), *like.shape), like.dtype)
    broken: dict[str, str] = {}
    kept: list[int] = []
    hashes = bytearray()
    for number, file in enumerate(files):
        try:
            pixels[number] = decode(file)
            hashes += _file_digest(file)
            kept.append(number)
        except DataCorrupt as error:  # all of them: nobody mends them one call at a time
            broken[str(file.relative_to(folder))] = str(error)
    return Chunk(pixels[kept], labels[kept], np.frombuffer(bytes(hashes), DIGEST), broken)


def _file_digest(file: Path) -> bytes:
    with file.open("rb") as stream:
        made = hashlib.file_digest(stream, partial(hashlib.blake2b, digest_size=DIGEST.itemsize))
    return made.digest()


def unreadable(reasons: Sequence[str]) -> DataCorrupt:
    """The error for images that cannot be read, with the reason of each of the first."""
    if len(reasons) == 1:
        return DataCorrupt(reasons[0])
    more = f" And {len(reasons) - _NAMED:,} others." if len(reasons) > _NAMED else ""
    shown = " ".join(reasons[:_NAMED])
    return DataCorrupt(f"{len(reasons):,} images cannot be read. {shown}{more}")


def class_files(
    path: Path, names: Sequence[str], skipped: Counter[str] | None = None
) -> list[list[Path]]:
    """The images in each class folder; if there are none in any, its NPY and NPZ files.

    Raises:
        DataCorrupt: a class without a folder, or with an empty one.
    """
    for name in names:
        if not (path / name).is_dir():
            shown = first_of(class_names(path), _NAMED) or "none"
            raise DataCorrupt(f"{path} has no folder for class {name!r}; its folders: {shown}.")
    counted = Counter[str]()
    found = [sorted(find_images(path / name, counted)) for name in names]
    if not any(found):
        counted.clear()
        found = [sorted(find_images(path / name, counted, arrays=True)) for name in names]
    if skipped is not None:
        skipped += counted
    for name, files in zip(names, found, strict=True):
        if not files:
            raise DataCorrupt(
                f"{path / name} holds no images. Put images there "
                f"({', '.join(sorted(SUFFIXES))}) or remove the folder."
            )
    return found


def stack_file(
    path: Path,
    size: tuple[int, int] | None,
    classes: tuple[str, ...] | None,
    pixel_format: PixelFormat = COLOUR,
    names: tuple[str, ...] = (),
) -> Source:
    """Images of a stack in an NPZ file with their ``labels``, or in an NPY file.

    Args:
        path: of the file, as for ``read_stack``. Labels are whole numbers, or names; ``names`` in
            an NPZ file are the names of numbered classes.
        size: (height, width) to resize to, if that is not the images' own.
        classes: the only ones, in this order; ``()``: all images are one class, the file's name.
        pixel_format: of the pixels.
        names: of numbered classes, in place of the file's.

    Raises:
        DataCorrupt: no stack of images, or labels that do not fit.
    """

    def read() -> Reading:
        header = read_array_header(path, str(path), MAX_PIXELS, stack=True)
        height, width = size or header.size(pixel_format.channels, str(path))
        there: tuple[str, ...] = (path.stem,)
        labels = np.zeros(header.shape[0], np.int64)
        if classes != ():
            labels, there = _stack_labels(path, len(labels), names)
        wanted = classes or there
        if classes:
            numbers = {name: number for number, name in enumerate(classes)}
            labels = np.array([numbers.get(name, -1) for name in there])[labels]
        kept = labels >= 0
        if not kept.any():
            raise DataCorrupt(f"{path} has no images of the classes {', '.join(wanted[:10])}.")

        def chunks() -> Iterator[Chunk]:
            start = 0
            for images in read_stack(path, pixel_format, str(path), MAX_PIXELS, _FOLDER_CHUNK):
                part = slice(start, start + len(images))
                start = part.stop
                some = images[kept[part]]
                if len(some):
                    resized = [resize_image(i, (height, width), str(path)) for i in some]
                    yield Chunk(
                        np.stack(resized), labels[part][kept[part]], digest_images(iter([some]))
                    )

        return Reading(int(kept.sum()), (height, width), wanted, chunks, pixel_format)

    facts = [file_sha256(path), classes, size, pixel_format.decoding, RESIZE_FILTER, names]
    return Source.of(path, read, *facts)


def _stack_labels(path: Path, count: int, names: tuple[str, ...]) -> tuple[Labels, tuple[str, ...]]:
    """The labels of a stack as numbers, and the names of the classes."""
    labels, there = read_labels(path, count, str(path))
    if labels is None:
        raise DataCorrupt(f"{path} has no labels: give an NPZ file with images and labels.")
    if labels.dtype.kind == "U":
        texts, numbers = np.unique(labels, return_inverse=True)
        return numbers, tuple(map(str, texts))
    if not names and not there and labels.max() >= _MOST_CLASSES:
        raise DataCorrupt(f"A label of {labels.max()} cannot be a class number; is it a label?")
    found = names or there or tuple(map(str, range(int(labels.max()) + 1)))
    _check_labels(labels, found, str(path))
    return labels, found


def class_names(folder: Path) -> tuple[str, ...]:
    """The class folders in a folder, in the order of their names."""
    there = (path.name for path in folder.iterdir() if path.is_dir())
    return tuple(sorted(name for name in there if not name.startswith((".", "_"))))


def _check_labels(labels: Labels, classes: tuple[str, ...], where: str) -> None:
    if labels.min() < 0 or labels.max() >= len(classes):
        raise DataCorrupt(
            f"{where} has labels {labels.min()}..{labels.max()} for {len(classes)} classes; "
            f"0..{len(classes) - 1} were expected."
        )
