"""Where the images of a protocol lie, before any of them is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from goen.data.images.formats import SUFFIXES
from goen.data.images.pixel_format import PixelFormat
from goen.data.protocols.splits import TEST, VALIDATION
from goen.data.sets.readers import class_names
from goen.errors import UsageError

Place: TypeAlias = str | Path
"""A folder of images, a file with a stack of images, or the name of a known set."""
Places: TypeAlias = Place | Sequence[Place] | Mapping[str, Place]
NOISE, AUGMENTED = "noise", "augmented"
GENERATED = (NOISE, AUGMENTED)
"""Sets for calibration that are made, not read."""
UNGROUPED = "ood"
_FOLDERS = {
    "train": ("train", "training"),
    VALIDATION: ("val", "valid", "validation"),
    TEST: ("test", "testing"),
}


@dataclass(frozen=True)
class Plan:
    """A protocol that is not opened yet.

    Attributes:
        name: of the protocol.
        train: class folders or a stack with labels; what the others lack is taken from it.
        validation: the same for validation images, or their share of ``train``.
        test: the same for test images.
        ood: places by group and name; the group ``ood`` if nobody says how far away a set is.
        calibration: places by name of the OOD sets that calibrate, ``None`` in the place of one of
            ``GENERATED``; if not given, those.
        classes: the only ones, in this order; all if not given.
        size: (height, width) of the images; chosen from the images if not given.
        pixel_format: the same.
        flip: whether a mirrored image is of the same class.
    """

    name: str
    train: Place
    validation: Place | float | None = None
    test: Place | float | None = None
    ood: Mapping[str, Mapping[str, Place]] = field(default_factory=dict)
    calibration: Mapping[str, Place | None] | None = None
    classes: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    pixel_format: PixelFormat | None = None
    flip: bool = True

    @classmethod
    def of_folder(
        cls,
        folder: Path,
        ood: Places | Mapping[str, Places] = (),
        *,
        validation: float | None = None,
        test: float | None = None,
        calibration: Places | None = None,
    ) -> "Plan":
        """The plan of a folder with ID images; see ``Protocol.from_folder``."""
        parts = find_parts(folder)
        return cls(
            folder.resolve().name,
            parts["train"],
            parts.get(VALIDATION) if validation is None else validation,
            parts.get(TEST) if test is None else test,
            group_places(ood),
            None if calibration is None else name_calibration(calibration),
        )

    def calibrated_with(self, places: Places) -> "Plan":
        """The plan with these OOD sets for calibration, and no others."""
        return replace(self, calibration=name_calibration(places))


def find_parts(folder: Path) -> dict[str, Path]:
    """The places of the ID images in a folder, by role.

    ``train/`` with ``val/`` or ``test/`` beside it, if it holds class folders; else the folder
    itself, whose class folders are split.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not a folder: give one with a folder of images per class, or with "
            "train/, val/ and test/ that hold such folders."
        )
    found: dict[str, Path] = {}
    for role, names in _FOLDERS.items():
        there = sorted(path for path in folder.iterdir() if path.name.lower() in names)
        there = list(filter(_holds_classes, there))
        if len(there) > 1:
            raise UsageError(
                f"{folder} has {there[0].name}/ and {there[1].name}/: which holds the {role} "
                "images?"
            )
        if there:
            found[role] = there[0]
    return found if "train" in found else {"train": folder}


def _holds_classes(folder: Path) -> bool:
    """Whether there is a folder with folders in it, and no images: one of a class has images."""
    if not folder.is_dir() or not class_names(folder):
        return False
    return not any(path.suffix.lower() in SUFFIXES for path in folder.iterdir())


def name_places(given: Places, what: str) -> dict[str, Place]:
    """Each place by its name: the one given, or that of the folder or file."""
    if isinstance(given, Mapping):
        return dict(given)
    several = [given] if isinstance(given, str | Path) else given
    found: dict[str, Place] = {}
    for place in several:
        path = Path(place)
        name = path.stem if path.is_file() else (path.name or path.resolve().name)
        name = name if path.exists() else str(place)
        if name in found:
            raise UsageError(
                f"Two {what} have the name {name!r}: {found[name]} and {place}. Give them names of "
                "their own in a protocol file (goen data new)."
            )
        found[name] = place
    return found


def group_places(given: Places | Mapping[str, Places]) -> dict[str, dict[str, Place]]:
    """OOD places by group and name: given as one or several, by name, or by group.

    A key is a group if what it has is not one place.
    """
    what = "OOD sets"
    if not isinstance(given, Mapping):
        return {UNGROUPED: name_places(given, what)}
    found: dict[str, dict[str, Place]] = {}
    for key, value in given.items():
        if isinstance(value, str | Path):
            found.setdefault(UNGROUPED, {})[key] = value
        else:
            found[key] = name_places(value, what)
    return found


def name_calibration(given: Places) -> dict[str, Place | None]:
    """Places of OOD sets that calibrate by name, ``None`` for those that are generated."""
    named = name_places(given, "sets for calibration")
    return {n: None if n in GENERATED and place == n else place for n, place in named.items()}
