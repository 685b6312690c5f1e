"""The one value type for images: a named set whose identity is its content."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from goen.data.images.pixel_format import Pixels as Pixels
from goen.errors import LeakError, UsageError, first_of

Labels = NDArray[np.int64]
Digests = NDArray[np.bytes_]

DIGEST = np.dtype("S16")
_NAMED = 5


def row_numbers(rows: ArrayLike) -> NDArray[np.int64]:
    """Image indices, as an array.

    Raises:
        UsageError: a boolean mask, of which True would be taken for image 1, or no integers.

    Example:
        >>> row_numbers(range(3)).tolist()
        [0, 1, 2]
    """
    numbers = np.asarray(rows)
    if numbers.dtype == np.bool_:
        raise UsageError("Rows are image indices, got a boolean mask: use numpy.flatnonzero(mask).")
    if numbers.size and numbers.dtype.kind not in "iu":
        raise UsageError(f"Rows are image indices, integers; got {numbers.dtype}.")
    return numbers.astype(np.int64)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with labels and a name; a split of a set is again a set.

    Attributes:
        name: what people call it, such as ``cifar10/train``.
        pixels: ``(M, C, H, W)`` uint8 or uint16, in memory or memory-mapped; never copied by a
            split. Colour has three channels, grey one.
        labels: ``(N,)`` class numbers. A set without classes has one class, its own name.
        classes: class names; a label is a position in it.
        rows: ``(N,)`` which rows of ``pixels`` are in this set; ``None`` means all, in order.
        known_digests: ``digests``, if they have been computed already.
        list_files: lists the file of each row of ``pixels``, if they were read from files.

    Example:
        >>> import numpy as np
        >>> black = np.zeros((4, 3, 8, 8), np.uint8)
        >>> s = ImageSet("tiny", black, np.array([0, 0, 1, 1]), ("a", "b"))
        >>> len(s), s.take([0, 2]).labels.tolist()
        (4, [0, 1])
    """

    name: str
    pixels: Pixels
    labels: Labels
    classes: tuple[str, ...]
    rows: Labels | None = None
    known_digests: Digests | None = field(default=None, repr=False)
    list_files: Callable[[], Sequence[Path]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        shape = self.pixels.shape
        whole = self.pixels.dtype in (np.uint8, np.uint16)
        # Images are not as narrow as a pixel is deep.
        if not whole or len(shape) != 4 or not shape[1] or shape[1] > 4 >= shape[3]:
            raise UsageError(
                f"{self.name}: images must be uint8 or uint16 of shape (N, C, H, W), "
                f"got {self.pixels.dtype} of shape {shape}."
            )
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        count = shape[0] if self.rows is None else len(self.rows)
        if self.labels.shape != (count,):
            raise UsageError(
                f"{self.name}: {count} images need {count} labels, got shape {self.labels.shape}."
            )
        if count and not (self.labels.min() >= 0 and self.labels.max() < len(self.classes)):
            raise UsageError(
                f"{self.name}: labels must lie in 0..{len(self.classes) - 1}, "
                f"got {self.labels.min()}..{self.labels.max()}."
            )

    def __repr__(self) -> str:
        size = "×".join(str(n) for n in self.image_shape)
        return f"ImageSet({self.name}: {len(self)} images {size}, {len(self.classes)} classes)"

    def __len__(self) -> int:
        return len(self.labels)

    def files(self, rows: ArrayLike | None = None) -> list[Path]:
        """The files of these images, of all if no rows are given.

        None if they have no files, or if there are others by now.
        """
        every = [] if self.list_files is None else self.list_files()
        if len(every) != len(self.pixels):
            return []
        numbers = np.arange(len(self)) if rows is None else row_numbers(rows)
        return [every[n] for n in (numbers if self.rows is None else self.rows[numbers])]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """``(C, H, W)``."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def read(self, rows: slice | ArrayLike | None = None) -> Pixels:
        """The pixels of these rows of the set, in memory: ``(n, C, H, W)``, yours to keep."""
        wanted = slice(None) if rows is None else rows
        if not isinstance(wanted, slice):
            wanted = row_numbers(wanted)
        if self.rows is not None:
            wanted = self.rows[wanted]
        return np.array(self.pixels[wanted], order="C")

    def read_inputs(self, rows: slice) -> NDArray[Any] | Mapping[str, NDArray[Any]]:
        """What a network takes of these rows: the pixels."""
        return self.read(rows)

    def batches(self, size: int) -> Iterator[Pixels]:
        """The pixels from first to last, ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self.read(slice(start, start + size))

    def take(self, rows: ArrayLike, name: str | None = None) -> "ImageSet":
        """The set of these rows, in this order; shares the pixels."""
        wanted = row_numbers(rows)
        known = self.__dict__.get("digests", self.known_digests)
        return replace(
            self,
            name=name or self.name,
            labels=self.labels[wanted],
            rows=wanted if self.rows is None else self.rows[wanted],
            known_digests=None if known is None else known[wanted],
        )

    def split(self, sizes: Mapping[str, int], seed: int) -> dict[str, "ImageSet"]:
        """Disjoint parts of the given sizes, drawn by one permutation that ``seed`` fixes.

        The sizes may leave images over, never ask for more than there are. The permutation comes
        from NumPy's frozen legacy stream: the same on every machine and in every version.
        """
        total = sum(sizes.values())
        if total > len(self) or min(sizes.values(), default=0) < 0:
            raise UsageError(
                f"{self.name} has {len(self)} images; cannot split into {dict(sizes)}."
            )
        order = np.random.RandomState(seed).permutation(len(self))
        parts, start = {}, 0
        for part, size in sizes.items():
            parts[part] = self.take(order[start : start + size], f"{self.name}[{part}]")
            start += size
        return parts

    def of_classes(self, names: tuple[str, ...], name: str) -> "ImageSet":
        """Only the images of these classes, labels renumbered in the order given."""
        missing = [n for n in names if n not in self.classes]
        if missing:
            raise UsageError(f"{self.name} has no class {missing[0]!r}.")
        renumber = np.full(len(self.classes), -1)
        renumber[[self.classes.index(n) for n in names]] = np.arange(len(names))
        kept = self.take(np.flatnonzero(renumber[self.labels] >= 0), name)
        return replace(kept, labels=renumber[kept.labels], classes=names)

    def without(self, *others: "ImageSet") -> "ImageSet":
        """Only the images that none of the others has, byte for byte."""
        taken = [np.isin(self.digests, other.digests) for other in others]
        return self.take(np.flatnonzero(~np.any(taken, axis=0))) if taken else self

    @cached_property
    def digests(self) -> Digests:
        """``(N,)`` one 16-byte hash per image: equal exactly where size and pixels are equal.

        An image of 16 bits equals one of 8 bits if each of its values is 257 times the other's.
        """
        if self.known_digests is not None:
            return self.known_digests
        return digest_images(self.batches(4096))

    @cached_property
    def fingerprint(self) -> str:
        """The identity of the content: images in order, labels and class names. Not the name."""
        header = repr((self.image_shape, self.classes)).encode()
        content = hashlib.blake2b(header, digest_size=16)
        content.update(np.ascontiguousarray(self.digests).tobytes())
        content.update(self.labels.astype("<i8").tobytes())
        return content.hexdigest()

    def to_json(self) -> dict[str, str | int]:
        """Its name, its size and the hash of its content, for manifests."""
        return {"name": self.name, "images": len(self), "fingerprint": self.fingerprint}

    @property
    def identity(self) -> str:
        """``name:fingerprint``, as results name what they used."""
        return f"{self.name}:{self.fingerprint}"

    def overlap(self, other: "ImageSet") -> int:
        """How many different images are in both sets, byte for byte."""
        return len(np.intersect1d(self.digests, other.digests))

    def counts(self) -> dict[str, int]:
        """How many images each class has."""
        numbers = np.bincount(self.labels, minlength=len(self.classes))
        return dict(zip(self.classes, numbers.tolist(), strict=True))


def digest_images(chunks: Iterator[Pixels]) -> Digests:
    """One 16-byte hash per image of the chunks, in order: ``(N,)``; see ``ImageSet.digests``."""
    digests = bytearray()
    for given in chunks:
        # The size goes in as well, so that equal bytes of another shape are another image.
        person = repr(given.shape[1:]).encode()[:16]
        for image in np.ascontiguousarray(given):
            pixels, salt = image, b""
            if image.dtype == np.uint16:
                short, rest = np.divmod(image, 257)
                pixels, salt = (image, b"16 bits") if rest.any() else (short.astype(np.uint8), b"")
            digests += hashlib.blake2b(
                pixels, digest_size=DIGEST.itemsize, person=person, salt=salt
            ).digest()
    return np.frombuffer(bytes(digests), dtype=DIGEST)


def require_disjoint(evaluated: ImageSet, *used: ImageSet) -> None:
    """Refuse to evaluate on images that already fitted, calibrated or chose something.

    Raises:
        LeakError: naming the sets and the number of shared images.

    Example:
        >>> from goen.data import load_set
        >>> digits = load_set("digits")
        >>> require_disjoint(digits.take(range(9)), digits.take(range(9, 99)))  # no error
    """
    for other in used:
        shared = np.isin(evaluated.digests, other.digests)
        if shared.any():
            raise LeakError(
                f"{evaluated.name} shares {shared.sum()} of its {len(evaluated)} images with "
                f"{other.name}, which has already been used for fitting, calibration or a choice"
                f"{named_files(evaluated, np.flatnonzero(shared))}. Evaluate on images that were "
                "held out: remove these from one of the two sets."
            )


def named_files(images: ImageSet, rows: ArrayLike) -> str:
    """Behind a count of images, the first of their files; nothing if they have none."""
    files = images.files(rows)
    return f": {first_of([*map(str, files)], _NAMED)}" if files else ""
