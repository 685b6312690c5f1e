"""The images of a plan: read at one size, split, without broken files and copies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from logging import getLogger
from pathlib import Path
from statistics import median_low

import numpy as np
from numpy.typing import ArrayLike

from goen.data.images.array_files import read_array_header
from goen.data.images.finding import find_images
from goen.data.images.headers import own_pixel_format, pixel_formats, read_image_size
from goen.data.images.limits import MAX_PIXELS
from goen.data.images.pixel_format import COLOUR, PixelFormat
from goen.data.images.resizing import resize_image
from goen.data.imageset import Digests, ImageSet, row_numbers
from goen.data.protocols.plan import Place, Plan
from goen.data.protocols.splits import (
    TEST,
    VALIDATION,
    check_shares,
    split_by_content,
    usual_shares,
)
from goen.data.sets.folders import folder_source
from goen.data.sets.readers import Chunk, Reading, Source, class_files, class_names, stack_file
from goen.data.sets.sources import load_set, names
from goen.data.sets.store import describe_broken, prepare
from goen.errors import DataCorrupt, UsageError, first_of
from goen.io.arrays import is_array_file

_log = getLogger(__name__)
# Files that are looked at to choose a size and a pixel format.
_LOOKED_AT = 200
# A network is trained on images of these sides unless a size is given: smaller ones have too few
# pixels for its four scales, and larger ones take hours on a CPU.
SMALLEST_SIDE, LARGEST_SIDE = 32, 96
PRETRAINED_SIDE = 224
"""What a pretrained network sees at most."""
_MULTIPLE = 8
_NAMED = 10
_CHUNK = 512


@dataclass(frozen=True, eq=False)
class OpenedSet:
    """A set, and where its images come from.

    Attributes:
        images: the set.
        content: ``(N,)`` hashes of the files or, of a stack, of the images at their own size.
        broken: files that could not be read, with the reasons.
        above: the folder of the class folders that it was read from.
        folders: the class folders.
        rows: of all images that were read, which are in this set.
    """

    images: ImageSet
    content: Digests
    broken: Mapping[str, str] = field(default_factory=dict)
    above: Path | None = None
    folders: tuple[str, ...] = ()
    rows: "np.typing.NDArray[np.int64] | None" = None

    @cached_property
    def _files(self) -> list[str]:
        """All files that were read, below the folder, in the order of their images."""
        if self.above is None:
            return []
        found = (file for part in class_files(self.above, self.folders) for file in part)
        every = (str(file.relative_to(self.above)) for file in found)
        return [file for file in every if file not in self.broken]

    def names(self, rows: ArrayLike) -> list[str]:
        """The files of these images, or their numbers in a stack."""
        numbers = row_numbers(rows)
        numbers = numbers if self.rows is None else self.rows[numbers]
        return [self._files[n] if self._files else f"image {n}" for n in numbers]

    def take(self, rows: ArrayLike, name: str | None = None) -> "OpenedSet":
        """Some of the images."""
        wanted = row_numbers(rows)
        taken = replace(
            self,
            images=self.images.take(wanted, name),
            content=self.content[wanted],
            rows=wanted if self.rows is None else self.rows[wanted],
        )
        if "_files" in self.__dict__:
            taken.__dict__["_files"] = self._files
        return taken


@dataclass(frozen=True, eq=False)
class OpenedPlan:
    """The sets of a plan, by name; see ``Plan``.

    Attributes:
        roles: ``train``, ``validation`` and ``test``.
        calibration: OOD sets that calibrate, without those that are generated.
        ood: OOD sets to evaluate on, by group and name.
        warnings: what was left out and why, for people.
        chosen: what was chosen: the size and the format of the images, the shares of a split.
    """

    roles: Mapping[str, OpenedSet]
    calibration: Mapping[str, OpenedSet]
    ood: Mapping[str, Mapping[str, OpenedSet]]
    warnings: Sequence[str]
    chosen: Sequence[str]


def open_plan(plan: Plan, largest_side: int = LARGEST_SIDE) -> OpenedPlan:
    """Read the images of a plan.

    Files that cannot be read are left out, and so are copies, pixel for pixel: of an image in
    several sets the first keeps it, in the order train, validation, calibration, test, OOD; of an
    image that is twice in a set for validation or testing the first counts.

    Args:
        plan: where they lie.
        largest_side: of images in colour, if the plan has no size.

    Raises:
        UsageError: a place where there is nothing, or a set without images.
    """
    chosen: list[str] = []
    places: list[Place] = [plan.train]
    pixel_format = plan.pixel_format or _choose_format(plan.train, plan.classes)
    largest = largest_side if pixel_format == COLOUR else LARGEST_SIDE
    size = plan.size or _choose_size(plan.train, plan.classes, pixel_format, largest)
    if plan.size is None:
        chosen.append(f"Images are read at {size[0]}×{size[1]}, {pixel_format}.")
    opened = {"train": _open(plan.train, size, plan.classes, pixel_format)}
    classes = opened["train"].images.classes
    for role, place in ((VALIDATION, plan.validation), (TEST, plan.test)):
        if isinstance(place, str | Path):
            opened[role] = _open(place, size, classes, pixel_format, role)
            places.append(place)
    warnings = _broken_files(opened.values())
    warnings += _in_two_classes(opened["train"])
    opened |= _split(plan, opened, chosen, warnings)
    calibration = {
        name: _open(place, size, (), pixel_format, name)
        for name, place in (plan.calibration or {}).items()
        if place is not None
    }
    ood = {
        group: {name: _open(p, size, (), pixel_format, name) for name, p in members.items()}
        for group, members in plan.ood.items()
    }
    outside = [
        *calibration.values(),
        *(part for members in ood.values() for part in members.values()),
    ]
    warnings += _broken_files(outside)
    kept = _Copies(warnings)
    roles = {
        "train": kept.add(opened["train"]),
        VALIDATION: kept.add(opened[VALIDATION], once=True),
    }
    calibration = {name: kept.add(part) for name, part in calibration.items()}
    roles[TEST] = kept.add(opened[TEST], once=True)
    left = {
        group: {name: kept.without(part) for name, part in members.items()}
        for group, members in ood.items()
    }
    for warning in warnings:
        _log.warning("%s", warning)
    for choice in chosen:
        _log.info("%s", choice)
    return OpenedPlan(roles, calibration, left, warnings, chosen)


def _open(
    place: Place,
    size: tuple[int, int],
    classes: tuple[str, ...] | None,
    pixel_format: PixelFormat,
    name: str = "",
) -> OpenedSet:
    """The set in a folder or a file, or the known set of this name; ``()``: without classes."""
    path = Path(place)
    folders: tuple[str, ...] = ()
    above: Path | None = None
    if path.is_dir():
        there = () if classes == () else _filled_folders(path, classes)
        source, above = folder_source(path, size, there, pixel_format)
        found = prepare(source, name or path.resolve().name)
        folders = found.images.classes
    elif is_array_file(path) and path.is_file():
        found = prepare(stack_file(path, size, classes, pixel_format), name or path.stem)
    elif str(place).partition("/")[0] in names():
        return _open_known(str(place), size, classes)
    else:
        raise UsageError(
            f"{place} is neither a folder, nor a file with a stack of images (.npz, .npy), nor a "
            f"known set ({', '.join(names())})."
        )
    images = found.images
    if classes:
        numbers = np.array([classes.index(one) for one in images.classes])
        images = replace(images, labels=numbers[images.labels], classes=classes)
    # In the order of their content: other names of files are not another set.
    order = np.argsort(found.content, kind="stable")
    return OpenedSet(images, found.content, found.broken, above, folders).take(order)


def _filled_folders(folder: Path, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The class folders that hold images, of these classes if they are given."""
    there = class_names(folder)
    filled = tuple(one for one in there if any(find_images(folder / one)))
    if not filled:
        filled = tuple(one for one in there if any(find_images(folder / one, arrays=True)))
    found = tuple(one for one in classes or filled if one in filled)
    if there and not found:
        raise UsageError(f"{folder} has no folder with images of {first_of(classes or there, 5)}.")
    return found or None


def _open_known(name: str, size: tuple[int, int], classes: tuple[str, ...] | None) -> OpenedSet:
    images = load_set(name, download=True)
    images = images.of_classes(classes, images.name) if classes else images
    content = images.digests
    if images.image_shape[1:] != size:
        images = _resized(images, size)
    return OpenedSet(images, content)


def _resized(images: ImageSet, size: tuple[int, int]) -> ImageSet:
    """The set at another size, prepared like one that is read from files."""
    pixel_format = PixelFormat(images.image_shape[0], 8 if images.pixels.dtype == np.uint8 else 16)

    def chunks() -> Iterable[Chunk]:
        for start in range(0, len(images), _CHUNK):
            some = images.read(slice(start, start + _CHUNK))
            pixels = np.stack([resize_image(image, size, images.name) for image in some])
            yield Chunk(pixels, images.labels[start : start + _CHUNK])

    def read() -> Reading:
        return Reading(len(images), size, images.classes, lambda: iter(chunks()), pixel_format)

    facts = ("resized", images.fingerprint, size)
    return prepare(Source.of(Path(images.name), read, *facts), images.name).images


def _split(
    plan: Plan, opened: Mapping[str, OpenedSet], chosen: list[str], warnings: list[str]
) -> dict[str, OpenedSet]:
    """The parts that have no place of their own, taken from the training images."""
    whole = opened["train"]
    asked = {VALIDATION: plan.validation, TEST: plan.test}
    usual = usual_shares(len(whole.images))
    shares = {
        role: float(share) if isinstance(share, int | float) else usual[role]
        for role, share in asked.items()
        if role not in opened
    }
    check_shares(shares)
    if not shares:
        return {}
    labels = whole.images.labels
    rows = split_by_content(whole.content, labels, shares)
    parts = {
        role: whole.take(found, f"{whole.images.name}[{role}]") for role, found in rows.items()
    }
    counted = ", ".join(f"{len(part.images):,} {role}" for role, part in parts.items())
    chosen.append(f"The images of each class are split by their content: {counted}.")
    few = [
        name
        for name, count in parts[next(iter(shares))].images.counts().items()
        if not count and whole.images.counts()[name]
    ]
    if few:
        warnings.append(
            f"Too few images to split, so that all are training images: {first_of(few, _NAMED)}."
        )
    return parts


def _broken_files(parts: Iterable[OpenedSet]) -> list[str]:
    return [describe_broken(part.images.name, part.broken) for part in parts if part.broken]


def _in_two_classes(part: OpenedSet) -> list[str]:
    """A sentence if images lie in the folders of several classes."""
    _, places = np.unique(part.images.digests, return_inverse=True)
    order = np.argsort(places, kind="stable")
    found: list[str] = []
    count = 0
    for rows in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
        if len({*part.images.labels[rows].tolist()}) > 1:
            count += 1
            found += [" = ".join(part.names(rows))] if len(found) < _NAMED else []
    if not found:
        return []
    return [
        f"{part.images.name}: {count:,} {'image lies' if count == 1 else 'images lie'} in several "
        f"classes, of which at most one is right; they are kept: {'; '.join(found)}."
    ]


class _Copies:
    """Leaves out of each set the images that an earlier one has, pixel for pixel.

    Args:
        warnings: a sentence is added for each set that loses images.
    """

    def __init__(self, warnings: list[str]) -> None:
        self._warnings = warnings
        self._earlier: list[OpenedSet] = []

    def add(self, part: OpenedSet, *, once: bool = False) -> OpenedSet:
        """The set without such images, which later sets are compared with.

        Args:
            part: the set.
            once: whether an image that it has twice counts once.
        """
        left = self.without(part)
        if once:
            first = np.sort(np.unique(left.images.digests, return_index=True)[1])
            if len(first) < len(left.images):
                self._warnings.append(
                    f"{part.images.name} has copies of its own images, which are left out: "
                    f"{len(left.images) - len(first):,}."
                )
                left = left.take(first)
        self._earlier.append(left)
        return left

    def without(self, part: OpenedSet) -> OpenedSet:
        """The set without images that an earlier one has."""
        for other in self._earlier:
            copied = np.isin(part.images.digests, other.images.digests)
            if copied.any():
                files = part.names(np.flatnonzero(copied)[:_NAMED])
                self._warnings.append(
                    f"{part.images.name} shares {int(copied.sum()):,} of its {len(copied):,} "
                    f"images with {other.images.name}, pixel for pixel; they are left out of "
                    f"{part.images.name}: {first_of(files, _NAMED)}"
                    f"{', ...' if copied.sum() > _NAMED else ''}."
                )
                part = part.take(np.flatnonzero(~copied))
            if not len(part.images):
                raise UsageError(
                    f"{part.images.name} has no image that {other.images.name} does not have, and "
                    "the sets of a protocol have different images. Is it a part of the same "
                    "folder? OOD images are images of no class, in a folder of their own."
                )
        return part


def _sample(place: Place, classes: tuple[str, ...] | None) -> list[Path]:
    """Some files of a folder, evenly spread; none if it is no folder."""
    folder = Path(place)
    if not folder.is_dir():
        return []
    parts = [folder / name for name in classes] if classes else [folder]
    found = [file for part in parts if part.is_dir() for file in find_images(part)]
    found = found or [f for p in parts if p.is_dir() for f in find_images(p, arrays=True)]
    return found[:: -(-len(found) // _LOOKED_AT)] if found else []


def _choose_format(place: Place, classes: tuple[str, ...] | None) -> PixelFormat:
    """Grey if all files are, several bands if all have as many, else colour."""
    path = Path(place)
    if is_array_file(path) and path.is_file():
        return read_array_header(path, str(path), MAX_PIXELS, stack=True).pixel_formats()[0]
    found: list[PixelFormat] = []
    for file in _sample(place, classes):
        try:
            array = is_array_file(file)
            found.append(pixel_formats(file)[0] if array else own_pixel_format(file)[0])
        except DataCorrupt:  # broken files are left out later
            continue
    channels = {each.channels for each in found}
    # Two or four channels of 8 bits are grey or colour with transparency.
    same = len(channels) == 1 and not (channels <= {2, 3, 4} and found[0].bits == 8)
    return PixelFormat(channels.pop(), max(each.bits for each in found)) if same else COLOUR


def _choose_size(
    place: Place, classes: tuple[str, ...] | None, pixel_format: PixelFormat, largest: int
) -> tuple[int, int]:
    """A square: the median of the shorter sides, a multiple of 8 from 32 pixels to the largest."""
    path = Path(place)
    sizes: list[tuple[int, int]] = []
    if is_array_file(path) and path.is_file():
        header = read_array_header(path, str(path), MAX_PIXELS, stack=True)
        sizes = [header.size(pixel_format.channels, str(path))]
    elif not path.is_dir() and str(place).partition("/")[0] in names():
        height, width = load_set(str(place), download=True).image_shape[1:]
        return height, width
    for file in _sample(place, classes):
        try:
            sizes.append(read_image_size(file, pixel_format))
        except DataCorrupt:
            continue
    side = median_low(min(size) for size in sizes) if sizes else SMALLEST_SIDE
    side = min(max(side // _MULTIPLE * _MULTIPLE, SMALLEST_SIDE), largest)
    return side, side
