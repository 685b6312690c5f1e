"""Protocol files: where the images of a protocol lie, in TOML."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from goen.data.images.pixel_format import PixelFormat
from goen.data.protocols.plan import GENERATED, UNGROUPED, Place, Plan, find_parts
from goen.data.protocols.splits import TEST, VALIDATION
from goen.data.sets.sources import names
from goen.errors import UsageError, unknown
from goen.io.files import whole_file

ENDING = ".toml"
_MOST_BYTES = 1 << 20
_GROUPS = ("near", "far")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read_plan(path: Path) -> Plan:
    """The plan in a protocol file.

    Raises:
        UsageError: no such file, no TOML, an unknown key, or a value of another type.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{path} has more than {_MOST_BYTES:,} bytes: it is no protocol file.")
    try:
        values = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # tomllib's own error is one
        raise UsageError(f"{path} is not a TOML file: {error}.") from error
    try:
        return _plan(_Table(values, "", path))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


class _Table:
    """A table of the file; every key that is read is checked, and others are errors."""

    def __init__(self, values: Mapping[str, object], name: str, file: Path) -> None:
        self.values, self.name, self.file = values, name, file

    def only(self, *keys: str) -> "_Table":
        for key in self.values:
            if key not in keys:
                raise unknown(f"key in [{self.name}]" if self.name else "key", key, keys)
        return self

    def get(self, key: str, kinds: tuple[type, ...], what: str) -> Any:
        value = self.values.get(key)
        # True is an int in Python.
        if value is None or (
            isinstance(value, kinds) and isinstance(value, bool) <= (bool in kinds)
        ):
            return value
        raise self.wrong(key, what, value)

    def wrong(self, key: str, what: str, value: object) -> UsageError:
        where = f"{self.name}.{key}" if self.name else key
        return UsageError(f"{where} is {what}, got {value!r}.")

    def table(self, key: str) -> "_Table":
        found = self.get(key, (dict,), "a table") or {}
        return _Table(found, f"{self.name}.{key}" if self.name else key, self.file)

    def place(self, key: str, *, generated: bool = False) -> Place | None:
        """A path relative to the file, or a known set; true for one that is generated."""
        value = self.get(key, (str, bool) if generated else (str,), "a path in quotes")
        if value is True and key in GENERATED:
            return None
        if not isinstance(value, str) or not value or "://" in value:
            raise self.wrong(key, "a path in quotes", value)
        path = self.file.parent / value
        known = value.partition("/")[0] in names() and not path.exists()
        return value if known else path


def _plan(table: _Table) -> Plan:
    table.only("name", "size", "channels", "bits", "flip", "id", "ood", "calibration")
    flip = table.get("flip", (bool,), "true or false")
    calibration = None
    if "calibration" in table.values:
        of_sets = table.table("calibration")
        # false leaves a generated set out.
        wanted = [key for key, value in of_sets.values.items() if value is not False]
        calibration = {key: of_sets.place(key, generated=True) for key in wanted}
    return replace(
        _id(table.table("id"), table.get("name", (str,), "a text") or table.file.stem),
        ood=_ood(table.table("ood")),
        calibration=calibration,
        size=_size(table),
        pixel_format=_pixel_format(table),
        flip=flip is not False,
    )


def _id(table: _Table, name: str) -> Plan:
    """The plan of the ID images: of one folder, or of a place for each role, or its share."""
    table.only("folder", "train", VALIDATION, TEST, "classes")
    if ("folder" in table.values) == ("train" in table.values):
        raise UsageError("[id] has a folder of class folders, or train.")
    place = _placed(table, "folder" if "folder" in table.values else "train")
    parts: dict[str, Place] = {"train": place}
    if "folder" in table.values and isinstance(place, Path) and not place.is_file():
        parts = dict(find_parts(place))
    return Plan(
        name,
        parts["train"],
        _place_or_share(table, VALIDATION, parts),
        _place_or_share(table, TEST, parts),
        classes=_classes(table),
    )


def _place_or_share(table: _Table, role: str, parts: Mapping[str, Place]) -> Place | float | None:
    share = table.values.get(role)
    if isinstance(share, float):
        return share
    return parts.get(role) if share is None else _placed(table, role)


def _classes(table: _Table) -> tuple[str, ...] | None:
    found = table.get("classes", (list,), "a list of names")
    if found is None:
        return None
    if not found or not all(isinstance(name, str) for name in found):
        raise table.wrong("classes", "a list of names", found)
    return tuple(found)


def _ood(table: _Table) -> dict[str, dict[str, Place]]:
    """Places by group and name; those outside of a group are of the group ``ood``."""
    found: dict[str, dict[str, Place]] = {}
    for key, value in table.values.items():
        if not isinstance(value, dict):
            found.setdefault(UNGROUPED, {})[key] = _placed(table, key)
            continue
        if key not in _GROUPS:
            raise unknown("group of OOD sets", key, _GROUPS)
        group = table.table(key)
        found[key] = {name: _placed(group, name) for name in group.values}
    return found


def _placed(table: _Table, key: str) -> Place:
    place = table.place(key)
    assert place is not None, "a place that is generated was not asked for"
    return place


def _size(table: _Table) -> tuple[int, int] | None:
    what = "a number of pixels, or [height, width]"
    value = table.get("size", (int, list), what)
    if value is None:
        return None
    sides = value if isinstance(value, list) else [value, value]
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise table.wrong("size", what, value)
    return sides[0], sides[1]


def _pixel_format(table: _Table) -> PixelFormat | None:
    channels = table.get("channels", (int,), "a whole number")
    bits = table.get("bits", (int,), "8 or 16")
    if channels is None and bits is None:
        return None
    return PixelFormat(3 if channels is None else channels, 8 if bits is None else bits)


def write_plan(plan: Plan, path: Path, *, overwrite: bool = False) -> None:
    """Write a protocol file for people to change.

    Args:
        plan: as ``goen data new`` makes it of its options.
        path: of the file; it ends in ``.toml``. Paths are written relative to it.
        overwrite: whether a file that is there is replaced.

    Raises:
        UsageError: another ending, or a path that is no text.
    """
    if path.suffix != ENDING:
        raise UsageError(f"A protocol file ends in {ENDING}, got {path}.")
    text = _written(plan, path)
    with whole_file(path, overwrite=overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _written(plan: Plan, path: Path) -> str:
    def place(of: Place | float | None) -> str:
        if of is None:
            return "true"
        return repr(of) if isinstance(of, float) else _text(_relative(of, path))

    def table(sets: Mapping[str, Place | None]) -> list[str]:
        return [f"{_key(name)} = {place(of)}" for name, of in sets.items()]

    roles = {"train": plan.train, VALIDATION: plan.validation, TEST: plan.test}
    given = {role: of for role, of in roles.items() if of is not None}
    if [*given] == ["train"]:
        given = {"folder": plan.train}
    calibration = dict.fromkeys(GENERATED) if plan.calibration is None else plan.calibration
    sizes = _SIZE if plan.size is None else f"size = {list(plan.size)}"
    lines = [
        _HEAD.format(path=path.name),
        f"name = {_text(plan.name)}",
        sizes,
        "# flip = false" if plan.flip else "flip = false",
        _ID,
        *(f"{role} = {place(of)}" for role, of in given.items()),
        *([f"classes = [{', '.join(map(_text, plan.classes))}]"] if plan.classes else []),
        _OOD,
        *table(plan.ood.get(UNGROUPED, {})),
        _NEAR,
        *table(plan.ood.get("near", {})),
        _FAR,
        *table(plan.ood.get("far", {})),
        _CALIBRATION,
        *table(calibration),
    ]
    return "\n".join(lines) + "\n"


def _relative(place: Place, file: Path) -> str:
    if isinstance(place, str) and not Path(place).exists():
        return place  # a known set
    return Path(os.path.relpath(Path(place).resolve(), file.resolve().parent)).as_posix()


def _text(value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{value!r} is no text: rename it.") from error
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


_HEAD = """\
# A protocol: which images train, calibrate and evaluate. Paths are relative to this file; a set is
# a folder of images, a file with a stack of images (.npz, .npy), or the name of a known set.
#
#   goen data check {path}      counts, sizes, classes, broken files, copies
#   goen run --data {path}
"""
_SIZE = "# size = 64           # pixels, or [height, width]; chosen from the images if not given"
_ID = """
# In-distribution images. A folder has a folder of images per class, or train/, val/ and test/ that
# have such folders. What is not there is taken from the training images: validation and test may
# also be shares, such as 0.15.
[id]"""
_OOD = """
# Images of no class, to evaluate on: name = "path". Those like the ID images belong to [ood.near],
# those unlike them to [ood.far], others here.
[ood]"""
_NEAR = "\n[ood.near]"
_FAR = "\n[ood.far]"
_CALIBRATION = """
# OOD images that fit detectors which use some, such as GOEN's head; no image of them is evaluated
# on. noise and augmented are generated. Without this table both are; an empty one means none.
[calibration]"""
