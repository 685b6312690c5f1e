"""Readers of the usual file formats of image sets, each to the same chunks of pixels.

``goen.data.sets.sources`` decides which reader is used, ``goen.data.sets.catalogue`` describes the
sets.
"""

import gzip
import hashlib
import json
import os
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goen.data.images.array_files import read_array_header, read_labels, read_stack
from goen.data.images.decoding import MAX_PIXELS, RESIZE_FILTER, read_image, resize_image
from goen.data.images.finding import find_images
from goen.data.images.formats import SUFFIXES
from goen.data.images.pixel_format import COLOUR, PixelFormat
from goen.data.imageset import Labels, Pixels
from goen.errors import DataCorrupt
from goen.io.arrays import array_errors, read_arrays

Chunks = Iterator[tuple[Pixels, Labels]]
# Of images that cannot be read.
_REASONS = 10
_FOLDER_CHUNK = 512
_MOST_CLASSES = 100_000
_MOST_IDX_BYTES = 1 << 26  # MNIST's largest file, its training images, has 47,040,016


@dataclass(frozen=True)
class Reading:
    """What lies in a source, before its pixels are read: enough to lay out the arrays.

    ``chunks`` gives ``(n, C, H, W)`` pixels and ``(n,)`` labels until ``count``
    images are through.
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


def hash_files(files: list[Path]) -> str:
    """The SHA-256 of the files' content, one after the other."""
    content = hashlib.sha256()
    for file in files:
        with file.open("rb") as handle:
            content.update(hashlib.file_digest(handle, "sha256").digest())
    return content.hexdigest()


def members_of(container: Path, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """The named files of a folder or of a tar archive, as ``(where, content)``, without unpacking.

    In an archive a member is identified by its last path component, so nothing in its path
    can lead anywhere.
    """
    if container.is_dir():
        for name in names:
            yield str(container / name), (container / name).read_bytes()
        return
    try:
        with tarfile.open(container) as archive:
            by_name = {Path(m.name).name: m for m in archive.getmembers() if m.isfile()}
            for name in names:
                if name not in by_name:
                    raise DataCorrupt(
                        f"{container} has no member {name}. Delete it and get the set again."
                    )
                member = archive.extractfile(by_name[name])
                assert member is not None  # isfile() above
                yield f"{container}:{name}", member.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataCorrupt(
            f"{container} is not a whole tar archive: {error}. Delete it and get the set again."
        ) from error


def cifar_records(data: bytes, label_bytes: int, where: str) -> tuple[Pixels, Labels]:
    """CIFAR's binary format: per image ``label_bytes`` bytes, of which the last is the class, then
    1,024 bytes each of red, green and blue."""
    width = label_bytes + 3072
    if not data or len(data) % width:
        raise DataCorrupt(
            f"{where} has {len(data):,} bytes; records of {width:,} bytes were expected, so it is "
            "cut short or of another format. Delete it and get the set again."
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, width)
    images = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    return images, records[:, label_bytes - 1].astype(np.int64)


def mat_file(path: Path, classes: tuple[str, ...]) -> Reading:
    """SVHN's cropped digits: ``X`` (32, 32, 3, N) uint8; ``y`` (N, 1), where 10 means digit 0."""
    from scipy.io import loadmat, whosmat  # takes a while to import, and only this format needs it

    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
    except Exception as error:  # scipy lets many kinds out of a broken file
        raise DataCorrupt(f"{path} is not a MATLAB file that SciPy can read: {error}.") from error
    shape = shapes.get("X", ())
    if "y" not in shapes or len(shape) != 4 or shape[2] != 3:
        found = ", ".join(f"{k} {v}" for k, v in shapes.items()) or "nothing"
        raise DataCorrupt(
            f"{path} should hold X (H, W, 3, N) and y (N, 1), and holds {found}. "
            "Is it SVHN's cropped-digits file?"
        )

    def chunks() -> Chunks:
        try:
            content = loadmat(path, variable_names=["X", "y"])
        except Exception as error:
            raise DataCorrupt(f"{path} is cut short or damaged: {error}.") from error
        images, labels = content["X"], content["y"].ravel()
        if images.dtype != np.uint8 or images.shape[3] != len(labels):
            raise DataCorrupt(
                f"{path}: X is {images.dtype} {images.shape} and y has {len(labels)} entries; "
                "uint8 and one label per image were expected."
            )
        if not np.isin(labels, np.arange(1, 11)).all():
            raise DataCorrupt(f"{path}: y should hold 1..10, where 10 means the digit 0.")
        yield images.transpose(3, 2, 0, 1), labels.astype(np.int64) % 10

    return Reading(shape[3], (shape[0], shape[1]), classes, chunks)


def npz_file(path: Path, classes: tuple[str, ...] | None) -> Reading:
    """``images`` uint8 (N, 3, H, W), (N, H, W, 3) or (N, H, W), ``labels`` (N,) and, if the set
    has no class names of its own, ``names`` (C,)."""
    with array_errors(str(path)):
        fields = read_arrays(path, ("images", "labels", "names"))
    images = fields.get("images", np.empty(0))
    labels = fields.get("labels", np.empty(0))
    if images.ndim == 3:
        images = np.repeat(images[:, None], 3, axis=1)
    elif images.ndim == 4 and images.shape[1] != 3 and images.shape[3] == 3:
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] != 3 or not images.size:
        raise DataCorrupt(
            f"{path} should hold 'images' as uint8 (N, 3, H, W), (N, H, W, 3) or (N, H, W); it "
            f"holds {images.dtype} {images.shape}."
        )
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise DataCorrupt(
            f"{path} should hold 'labels' as {len(images)} whole numbers; it holds "
            f"{labels.dtype} {labels.shape}."
        )
    names = classes or tuple(map(str, np.ravel(fields.get("names", ())))) or _numbered(labels)
    _check_labels(labels, names, str(path))
    return Reading(
        len(images),
        (images.shape[2], images.shape[3]),
        names,
        lambda: iter([(images, labels.astype(np.int64))]),
    )


def idx_files(images: Path, labels: Path, classes: tuple[str, ...]) -> Reading:
    """MNIST's format; the 28×28 digits are set into 32×32 with a black rim of two pixels."""
    return idx_bytes(_idx_content(images), _idx_content(labels), classes, str(images))


def _idx_content(path: Path) -> bytes:
    """The file's bytes, unpacked if it is a ``.gz``; a bomb is refused before it fills memory."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_MOST_IDX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataCorrupt(f"{path} is not a whole gzip file: {error}. Get it again.") from error
    if len(content) > _MOST_IDX_BYTES:
        raise DataCorrupt(
            f"{path} holds more than {_MOST_IDX_BYTES:,} bytes; no file of MNIST does. Replace it."
        )
    return content


def idx_bytes(images: bytes, labels: bytes, classes: tuple[str, ...], where: str) -> Reading:
    """``idx_files`` from the files' content."""
    magic, count, height, width = np.frombuffer(images[:16].ljust(16, b"\0"), ">i4").tolist()
    if (
        magic != 2051
        or count < 1
        or len(images) != 16 + count * height * width
        or len(labels) != 8 + count
    ):
        raise DataCorrupt(f"{where} is not a whole IDX file of images with one label each.")
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(count, 1, height, width)
    padded = np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2)))
    numbers = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    _check_labels(numbers, classes, where)
    return Reading(
        count,
        (height + 4, width + 4),
        classes,
        lambda: iter([(np.repeat(padded, 3, axis=1), numbers)]),
    )


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
    twice. ``skipped`` counts the other files, as in ``find_images``.
    """
    names = classes or class_names(path)
    for name in names:
        if os.fsencode(name) != name.encode("utf-8", "replace"):
            raise DataCorrupt(f"{path} has a class folder {name!r}, which is no text: rename it.")
    by_class = [
        (number, file)
        for number, found in enumerate(class_files(path, names, skipped))
        for file in found
    ]
    if not by_class:
        raise DataCorrupt(f"{path} has no class folders with images in them.")
    files = [file for _, file in by_class]
    found = [(str(f.relative_to(path)), f.stat()) for f in files]
    stats = [(name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in found]
    # The way images are read is part of it: sets prepared otherwise are prepared again.
    facts = json.dumps(
        [str(path.resolve()), names, size, stats, pixel_format.decoding, RESIZE_FILTER]
    )
    identity = hashlib.sha256(facts.encode()).hexdigest()
    labels = np.array([number for number, _ in by_class], dtype=np.int64)

    def read() -> Reading:
        height, width = size or read_image(files[0], None, pixel_format=pixel_format).shape[1:]

        def chunks() -> Chunks:
            for start in range(0, len(files), _FOLDER_CHUNK):
                part = files[start : start + _FOLDER_CHUNK]
                try:
                    pixels = [
                        read_image(file, (height, width), pixel_format=pixel_format)
                        for file in part
                    ]
                except DataCorrupt as error:
                    raise _all_unreadable(files[start:], (height, width), pixel_format) from error
                yield np.stack(pixels), labels[start : start + len(part)]

        return Reading(len(files), (height, width), names, chunks, pixel_format)

    return Source(identity, str(path), read)


def _all_unreadable(
    files: Sequence[Path], size: tuple[int, int], pixel_format: PixelFormat
) -> DataCorrupt:
    """What is wrong with each that cannot be read: nobody wants to mend them one call at a time."""
    reasons = []
    for file in files:
        try:
            read_image(file, size, pixel_format=pixel_format)
        except DataCorrupt as error:
            reasons.append(str(error))
    if len(reasons) == 1:
        return DataCorrupt(reasons[0])
    more = f" And {len(reasons) - _REASONS:,} others." if len(reasons) > _REASONS else ""
    shown = " ".join(reasons[:_REASONS])
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
            raise DataCorrupt(f"{path} has no folder for class {name!r}.")
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
                f"{path / name} holds no images, so class {name!r} would be empty. Put images "
                f"there ({', '.join(sorted(SUFFIXES))}) or remove the folder."
            )
    return found


def stack_file(
    path: Path,
    size: tuple[int, int] | None,
    classes: tuple[str, ...] | None,
    pixel_format: PixelFormat,
) -> Source:
    """Images ``(N, C, H, W)`` or ``(N, H, W, C)`` in an NPZ file with their ``labels``, or in NPY.

    Args:
        path: of the file. Labels are whole numbers, or names; ``names`` in an NPZ file are the
            names of numbered classes.
        size: (height, width) to resize to, if that is not the images' own.
        classes: the only ones, in this order; ``()``: all images are one class, the file's name.
        pixel_format: of the pixels.

    Raises:
        DataCorrupt: no stack of images, or labels that do not fit.
    """
    facts = json.dumps([hash_files([path]), classes, size, pixel_format.decoding, RESIZE_FILTER])

    def read() -> Reading:
        header = read_array_header(path, str(path), MAX_PIXELS)
        count, own = header.shape[0], header.size(pixel_format.channels, str(path))
        given, names = (None, ()) if classes == () else read_labels(path, count, str(path))
        if given is None:
            if classes != ():
                raise DataCorrupt(f"{path} has no labels: give an NPZ file with images and labels.")
            return _stack_reading(
                path, size or own, (path.stem,), np.zeros(count, np.int64), pixel_format
            )
        labels, there = _class_numbers(given, names, str(path))
        return _stack_reading(path, size or own, *_renumbered(labels, there, classes), pixel_format)

    return Source(hashlib.sha256(facts.encode()).hexdigest(), str(path), read)


def _stack_reading(
    path: Path,
    size: tuple[int, int],
    classes: tuple[str, ...],
    labels: Labels,
    pixel_format: PixelFormat,
) -> Reading:
    """The images whose label is not negative."""
    kept = np.flatnonzero(labels >= 0)

    def chunks() -> Chunks:
        start = 0
        for images in read_stack(path, pixel_format, str(path), MAX_PIXELS, _FOLDER_CHUNK):
            part = labels[start : start + len(images)]
            start += len(images)
            wanted = images[part >= 0]
            if len(wanted):
                resized = np.stack([resize_image(image, size, str(path)) for image in wanted])
                yield resized, part[part >= 0]

    if not len(kept):
        raise DataCorrupt(f"{path} has no images of the classes {', '.join(classes[:10])}.")
    return Reading(len(kept), size, classes, chunks, pixel_format)


def _class_numbers(
    labels: NDArray[Any], names: tuple[str, ...], where: str
) -> tuple[Labels, tuple[str, ...]]:
    """Labels as numbers, and the names of the classes."""
    if labels.dtype.kind == "U":
        there, numbers = np.unique(labels, return_inverse=True)
        return numbers.astype(np.int64), tuple(map(str, there))
    found = names or _numbered(labels)
    _check_labels(labels, found, where)
    return labels.astype(np.int64), found


def _renumbered(
    labels: Labels, there: tuple[str, ...], classes: tuple[str, ...] | None
) -> tuple[tuple[str, ...], Labels]:
    """The wanted classes, and labels as their numbers; -1 for other classes."""
    if not classes:
        return there, labels
    places = {name: number for number, name in enumerate(classes)}
    return classes, np.array([places.get(name, -1) for name in there], np.int64)[labels]


def class_names(folder: Path) -> tuple[str, ...]:
    """The class folders in a folder, in the order of their names."""
    return tuple(sorted(child.name for child in folder.iterdir() if is_class_folder(child)))


def is_class_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "_"))


def _numbered(labels: Labels) -> tuple[str, ...]:
    if labels.max() >= _MOST_CLASSES:
        raise DataCorrupt(f"A label of {labels.max()} cannot be a class number; is it a label?")
    return tuple(str(i) for i in range(int(labels.max()) + 1))


def _check_labels(labels: Labels, classes: tuple[str, ...], where: str) -> None:
    if labels.min() < 0 or labels.max() >= len(classes):
        raise DataCorrupt(
            f"{where} has labels {labels.min()}..{labels.max()} for {len(classes)} classes; "
            f"0..{len(classes) - 1} were expected."
        )
